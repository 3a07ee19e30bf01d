"""The data of a store, and the requests on it. One implementation, in C (native/store/table.c): HashStore keeps a Table in
the process, TCPStore in its server, FileStore replays a log of requests into one per user.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from arraycomm._engine import store_apply, store_table

from ...base.errors import DistStoreError, ResourceError
from ...base.printable import printable
from ...base.record import Record

# As in native/store/store.h.
MAX_KEY = 8 << 10  # bytes
MAX_FRAME = 320 << 20
POSTED = 0x80  # bit of a request's code: no answer; a failure is told with the next answer
OK, TIMED_OUT, BAD_REQUEST, OVER_QUOTA, CLOSED = range(5)  # codes of answers; the middle two carry a text


class Op:
    """Requests. SET takes key, value, key, value...; GET, WAIT and CHECK take keys, the others a key first.

    Plain numbers: a look into an enum takes longer than sending one.
    """

    SET = 0
    GET = 1
    ADD = 2
    COMPARE_SET = 3
    APPEND = 4
    DELETE = 5
    WAIT = 6
    CHECK = 7
    NUM_KEYS = 8
    LIST_KEYS = 9
    PUSH = 10
    POP = 11
    QUEUE_LEN = 12
    WILL = 13  # name, key, value, key, value...; for TCPStore's server, which knows who has gone


CHANGING = frozenset({Op.SET, Op.ADD, Op.COMPARE_SET, Op.APPEND, Op.DELETE, Op.PUSH, Op.POP})


class Missing(Record):
    """The answer to a request that has to wait: the first key that is not there."""

    key: bytes


class Table:
    """Keys to values, and queues. Not thread-safe."""

    def __init__(self) -> None:
        self._table = store_table()

    def apply(self, op: int, args: Sequence[bytes]) -> list[bytes] | Missing:
        """Carries a request out, whole or not at all.

        Raises ValueError for a malformed request or an `add` to text that is no number, ResourceError at a quota.
        """
        answer = store_apply(self._table, op, args)
        if isinstance(answer, bytes):
            return Missing(answer)
        code, strings, _ = answer
        if code:
            raise failure(code, strings)
        return strings


def failure(code: int, answer: Sequence[bytes]) -> Exception:
    """The exception for an answer's code other than OK."""
    text = printable(answer[0]) if answer else ""
    known = {TIMED_OUT: TimeoutError, BAD_REQUEST: ValueError, OVER_QUOTA: ResourceError}
    return known.get(code, DistStoreError)(text or f"answer {code}")


# One frame, a request, an answer or a line of FileStore's log: u32 length of the rest, u8 code, u32 milliseconds,
# u32 number of strings, their u32 lengths, the strings. Little-endian.
_HEAD = struct.Struct("<IBII")
LENGTH = 4


def encode(code: int, strings: Sequence[bytes], milliseconds: int = 0) -> bytes:
    lengths = [len(string) for string in strings]
    size = _HEAD.size - LENGTH + 4 * len(lengths) + sum(lengths)
    head = _HEAD.pack(size, code, milliseconds, len(lengths))
    return b"".join((head, struct.pack(f"<{len(lengths)}I", *lengths), *strings))


def frame_size(start: bytes | bytearray) -> int:
    """Bytes of the frame that begins so, 0 while that cannot be told. ValueError for one that nobody sends."""
    if len(start) < LENGTH:
        return 0
    size = LENGTH + int.from_bytes(start[:LENGTH], "little")
    if not _HEAD.size <= size <= MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes; between {_HEAD.size} and {MAX_FRAME} are allowed")
    return size


def decode(frame: bytes | bytearray) -> tuple[int, list[bytes], int]:
    """(code, strings, milliseconds) of a whole frame. ValueError when its lengths do not add up."""
    size, code, milliseconds, count = _HEAD.unpack_from(frame)
    position = _HEAD.size + 4 * count
    if size + LENGTH != len(frame) or position > len(frame):
        raise ValueError("a frame whose lengths do not add up")
    strings = []
    for length in struct.unpack_from(f"<{count}I", frame, _HEAD.size):
        strings.append(bytes(frame[position:position + length]))
        position += length
    if position != len(frame):
        raise ValueError("a frame whose lengths do not add up")
    return code, strings, milliseconds

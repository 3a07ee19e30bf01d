"""The data of a store, and the requests on it. One implementation, in C (native/store): HashStore keeps a Table in the process,
TCPStore in its server, FileStore replays a log of requests into one per user.

Requests are those of torch.distributed's TCPStore, and two more: one byte, then keys and values as u64 length and bytes, and
numbers as i64; little-endian. Answers of our own servers begin with a status byte.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence

from arraycomm._engine import store_apply, store_table

from ...base.errors import DistStoreError, ResourceError
from ...base.printable import printable

# As in native/store/store.h.
OK, CANCELLED, BAD_REQUEST, OVER_QUOTA, CLOSED = range(5)  # statuses; the two before the last carry a text
MAGIC = 0x3C85F7CE
MAX_REQUEST = 320 << 20  # bytes; and of a value
_NUMBER = struct.Struct("<q")


class Op:
    """Requests, torch's up to BARRIER. Plain numbers: a look into an enum takes longer than sending one."""

    VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE, APPEND, MULTI_GET, MULTI_SET, CANCEL, PING, PUSH, POP, \
        QUEUE_LEN, LIST_KEYS, BARRIER = range(19)
    AWAIT_VALUES = 19  # MULTI_GET that waits for the keys
    WILL = 20  # MULTI_SET once the client has gone; the first key is the will's name


CHANGING = frozenset({Op.SET, Op.MULTI_SET, Op.ADD, Op.COMPARE_SET, Op.APPEND, Op.DELETE, Op.PUSH, Op.POP})
_EACH = {Op.CHECK: 1, Op.WAIT: 1, Op.MULTI_GET: 1, Op.AWAIT_VALUES: 1, Op.MULTI_SET: 2, Op.WILL: 2}  # fields, told how often


def encode(op: int, fields: Sequence[bytes | int]) -> bytes:
    parts = [bytes((op,))]
    if op in _EACH:
        parts.append(_NUMBER.pack(len(fields) // _EACH[op]))
    for field in fields:
        if isinstance(field, int):
            parts.append(_NUMBER.pack(field))
        else:
            parts += _NUMBER.pack(len(field)), field
    return b"".join(parts)


Read = Callable[[int], bytes]  # reads exactly this many bytes, or raises


def _number(read: Read) -> int:
    return int(_NUMBER.unpack(read(8))[0])


def read_bytes(read: Read) -> bytes:
    size = _number(read)
    if not 0 <= size <= MAX_REQUEST:
        raise ValueError(f"a value of {size} bytes, which is not what a store sends")
    return read(size)


def read_answer(op: int, fields: int, read: Read) -> list[bytes]:
    """Reads the answer after the status byte. `fields`: number of fields in the request."""
    if op in (Op.ADD, Op.NUM_KEYS, Op.DELETE, Op.QUEUE_LEN):
        return [b"%d" % _number(read)]
    if op == Op.CHECK:
        return [b"%d" % (read(1)[0] == OK)]
    if op in (Op.GET, Op.COMPARE_SET):
        count = 1
    elif op in (Op.MULTI_GET, Op.AWAIT_VALUES):
        count = fields
    elif op == Op.POP:
        count = min(_number(read), 1)  # torch's server returns the number of deleted keys
    else:
        count = _number(read) if op == Op.LIST_KEYS else 0
    return [read_bytes(read) for _ in range(count)]


class Table:
    """Keys to values, and queues. Not thread-safe."""

    def __init__(self) -> None:
        self._table = store_table()

    def apply(self, op: int, fields: Sequence[bytes | int]) -> list[bytes] | None:
        """Executes a request atomically; None for one that has to wait.

        Raises ValueError for a malformed request or an `add` to text that is no number, ResourceError at a quota.
        """
        answer = self.replay(encode(op, fields))
        if answer is None:
            return None
        read = io.BytesIO(answer).read
        status = read(1)[0]
        if status:
            raise failure(status, [read_bytes(read)])
        return read_answer(op, len(fields), read)

    def replay(self, request: bytes) -> bytes | None:
        return store_apply(self._table, request)


def failure(status: int, answer: Sequence[bytes]) -> Exception:
    """The exception for a status other than OK."""
    text = printable(answer[0]) if answer else ""
    known = {CANCELLED: TimeoutError, BAD_REQUEST: ValueError, OVER_QUOTA: ResourceError}
    return known.get(status, DistStoreError)(text or f"answer {status}")

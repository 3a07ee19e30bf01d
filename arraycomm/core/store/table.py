"""The data of a store, and the requests on it. One implementation: HashStore keeps a Table in the process, TCPStore in
its server, FileStore replays a log of requests into one per user.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ResourceError

MAX_KEY = 8 << 10  # bytes
MAX_VALUE = 8 << 20
MAX_TOTAL = 256 << 20
MAX_FRAME = MAX_TOTAL + (64 << 20)  # every key and value at once, and their lengths
_OVERHEAD = 100  # bytes that an entry costs beyond key and value
OWN = b"\0"  # keys of the store's own start so; list_keys and num_keys pass over them


class Op(enum.IntEnum):
    """Requests. SET takes key, value, key, value...; GET, WAIT and CHECK take keys, the others a key first."""

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
_ARGUMENTS: dict[int, int] = {
    Op.ADD: 2, Op.COMPARE_SET: 3, Op.APPEND: 2, Op.DELETE: 1, Op.NUM_KEYS: 0, Op.LIST_KEYS: 0, Op.PUSH: 2, Op.POP: 1,
    Op.QUEUE_LEN: 1}


class Missing(NamedTuple):
    """The answer to a request that has to wait: the first key that is not there."""

    key: bytes


class Table:
    """Keys to values, and queues. Not thread-safe."""

    def __init__(self, max_total: int = MAX_TOTAL) -> None:
        self.values: dict[bytes, bytes] = {}
        self.queues: dict[bytes, deque[bytes]] = {}
        self._room = self._limit = max_total

    def apply(self, op: int, args: Sequence[bytes]) -> list[bytes] | Missing:
        """Carries a request out, whole or not at all.

        Raises ValueError for a malformed request or an `add` to text that is no number, ResourceError at a quota.
        """
        if not 0 <= op < len(_HANDLERS):
            raise ValueError(f"unknown request {op}")
        if len(args) != _ARGUMENTS.get(op, len(args)) or (op == Op.SET and len(args) % 2):
            raise ValueError(f"{Op(op).name} does not take {len(args)} arguments")
        return _HANDLERS[op](self, args)

    def _has(self, key: bytes) -> bool:
        return key in self.values or bool(self.queues.get(key))

    def _reserve(self, key: bytes, value: int, grows: int) -> None:
        if len(key) > MAX_KEY:
            raise ResourceError(f"a key of {len(key)} bytes; the store takes at most {MAX_KEY}")
        if value > MAX_VALUE:
            raise ResourceError(f"a value of {value} bytes for key {_show(key)}; the store takes at most {MAX_VALUE}: "
                                "move data with collectives, the store is for addresses and counters")
        if grows > self._room:
            raise ResourceError(f"the store is full: {grows} bytes for key {_show(key)} do not fit into "
                                f"the {self._room} left of {self._limit}; delete keys that are no longer needed")

    def _write(self, key: bytes, value: bytes) -> None:
        old = self.values.get(key)
        grows = len(value) - len(old) if old is not None else len(key) + len(value) + _OVERHEAD
        self._reserve(key, len(value), grows)
        self.values[key] = value
        self._room -= grows

    def _set(self, args: Sequence[bytes]) -> list[bytes]:
        # The whole of a multi_set is checked first; keys that are there already are counted as if they were new.
        need = sum(len(key) + len(value) + _OVERHEAD for key, value in zip(args[::2], args[1::2], strict=True))
        for key, value in zip(args[::2], args[1::2], strict=True):
            self._reserve(key, len(value), need if len(args) > 2 else 0)
        for key, value in zip(args[::2], args[1::2], strict=True):
            self._write(key, value)
        return []

    def _first_missing(self, keys: Sequence[bytes]) -> Missing | None:
        return next((Missing(key) for key in keys if not self._has(key)), None)

    def _get(self, keys: Sequence[bytes]) -> list[bytes] | Missing:
        missing = next((Missing(key) for key in keys if key not in self.values), None)
        return missing or [self.values[key] for key in keys]

    def _add(self, args: Sequence[bytes]) -> list[bytes]:
        try:
            total = int(self.values.get(args[0], b"0")) + int(args[1])
        except ValueError:
            raise ValueError(f"cannot add to key {_show(args[0])}: its value is not a decimal number") from None
        self._write(args[0], str(total).encode())
        return [self.values[args[0]]]

    def _compare_set(self, args: Sequence[bytes]) -> list[bytes]:
        key, expected, desired = args
        current = self.values.get(key)
        if current is None and expected:
            return [expected]
        if current is None or current == expected:
            self._write(key, desired)
        return [self.values[key]]

    def _append(self, args: Sequence[bytes]) -> list[bytes]:
        self._write(args[0], self.values.get(args[0], b"") + args[1])
        return []

    def _delete(self, args: Sequence[bytes]) -> list[bytes]:
        value = self.values.pop(args[0], None)
        if value is None:
            return [b"0"]
        self._room += len(args[0]) + len(value) + _OVERHEAD
        return [b"1"]

    def _wait(self, keys: Sequence[bytes]) -> list[bytes] | Missing:
        return self._first_missing(keys) or []

    def _check(self, keys: Sequence[bytes]) -> list[bytes]:
        return [b"0" if self._first_missing(keys) else b"1"]

    def _num_keys(self, args: Sequence[bytes]) -> list[bytes]:
        return [str(len(self._list_keys(args))).encode()]

    def _list_keys(self, args: Sequence[bytes]) -> list[bytes]:
        return [key for key in self.values if not key.startswith(OWN)]

    def _push(self, args: Sequence[bytes]) -> list[bytes]:
        grows = len(args[0]) + len(args[1]) + _OVERHEAD
        self._reserve(args[0], len(args[1]), grows)
        self.queues.setdefault(args[0], deque()).append(args[1])
        self._room -= grows
        return []

    def _pop(self, args: Sequence[bytes]) -> list[bytes] | Missing:
        queue = self.queues.get(args[0])
        if not queue:
            return Missing(args[0])
        value = queue.popleft()
        if not queue:
            del self.queues[args[0]]
        self._room += len(args[0]) + len(value) + _OVERHEAD
        return [value]

    def _queue_len(self, args: Sequence[bytes]) -> list[bytes]:
        return [str(len(self.queues.get(args[0], ()))).encode()]


_HANDLERS = (Table._set, Table._get, Table._add, Table._compare_set, Table._append, Table._delete, Table._wait,
             Table._check, Table._num_keys, Table._list_keys, Table._push, Table._pop, Table._queue_len)


def appearing(op: int, args: Sequence[bytes]) -> Sequence[bytes]:
    """The keys that somebody may have waited for and that this request may have brought."""
    if op == Op.SET:
        return args[::2]
    return args[:1] if op in (Op.ADD, Op.COMPARE_SET, Op.APPEND, Op.PUSH) else ()


def _show(key: bytes) -> str:
    text = key.decode(errors="backslashreplace")
    return repr(text if len(text) <= 100 else text[:100] + "...")


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

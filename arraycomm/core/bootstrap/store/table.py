"""The data of a store, and the requests on it: HashStore keeps a Table in the process, TCPStore in its server, FileStore
replays a log of requests into one per user.

Requests are those of torch.distributed's TCPStore, and two more: one byte, then keys and values as u64 length and bytes, and
numbers as i64; little-endian. Answers of our own servers begin with a status byte.
"""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain

from ...base.errors import DistStoreError, ResourceError
from ...base.printable import printable

OK, CANCELLED, BAD_REQUEST, OVER_QUOTA, CLOSED = range(5)  # statuses; the two before the last carry a text
MAGIC = 0x3C85F7CE
MAX_KEY, MAX_VALUE, MAX_TOTAL = 8 << 10, 8 << 20, 256 << 20  # bytes; of a key without the slash that users' keys begin with
MAX_REQUEST = 320 << 20  # bytes; and of an answer
_OVERHEAD = 160  # bytes that an entry counts for beyond key and value
_MOST_KEYS = 1 << 20  # of one request
_SHOWN = 100  # bytes of a key in an error's text
_NUMBER = struct.Struct("<q")
_DIGITS = 22  # at most, of a number
_UNEVEN = "a request whose lengths do not add up"


class Op:
    """Requests, torch's up to BARRIER. Plain numbers: a look into an enum takes longer than sending one."""

    VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE, APPEND, MULTI_GET, MULTI_SET, CANCEL, PING, PUSH, POP, \
        QUEUE_LEN, LIST_KEYS, BARRIER = range(19)
    AWAIT_VALUES = 19  # MULTI_GET that waits for the keys
    WILL = 20  # MULTI_SET once the client has gone; the first key is the will's name


CHANGING = frozenset({Op.SET, Op.MULTI_SET, Op.ADD, Op.COMPARE_SET, Op.APPEND, Op.DELETE, Op.PUSH, Op.POP})
_NUMBERS = frozenset({Op.ADD, Op.NUM_KEYS, Op.DELETE, Op.QUEUE_LEN})  # the answer is one
_EACH = {Op.CHECK: 1, Op.WAIT: 1, Op.MULTI_GET: 1, Op.AWAIT_VALUES: 1, Op.MULTI_SET: 2, Op.WILL: 2}  # fields, told how often
_HOLDS = ("4", "kv", "kvv", "k", "kn", "k", "k", "", "k", "kv", "k", "kv", "", "4", "kv", "k", "k", "", "kn", "k",
          "kv")  # fields by request: k key, v value, n number, 4 so many bytes

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


def parse(member: bool) -> Generator[int, bytes, tuple[int, list[bytes | int]]]:
    """Reads a request: takes the bytes, as many at a time as it asks for, and returns the request and its fields. Raises
    ValueError for an invalid one. Of a member a key or value may be too long: its answer reports it."""
    op = (yield 1)[0]
    if op > (Op.WILL if member else Op.BARRIER):
        raise ValueError(f"an unknown request, {op}")
    times = _number((yield 8)) if op in _EACH else 1
    if not 0 <= times <= _MOST_KEYS:
        raise ValueError(f"a list of {times}")
    fields: list[bytes | int] = []
    for _ in range(times):
        for kind in _HOLDS[op]:
            if kind == "n":
                fields.append(_number((yield 8)))
            else:
                size = 4 if kind == "4" else _number((yield 8))
                if not 0 <= size <= (MAX_TOTAL if member else MAX_KEY + 1 if kind == "k" else MAX_VALUE):
                    raise ValueError(f"{_UNEVEN}: a key or value of {size} bytes")
                fields.append((yield size))
    return op, fields


def decode(request: bytes) -> tuple[int, list[bytes | int]]:
    """A whole request and its fields. Raises ValueError for anything else."""
    read, parser = io.BytesIO(request).read, parse(True)
    need = next(parser)
    try:
        while len(data := read(need)) == need:
            need = parser.send(data)
    except StopIteration as end:
        if not read(1):
            found: tuple[int, list[bytes | int]] = end.value
            return found
    raise ValueError(_UNEVEN)


Read = Callable[[int], bytes]  # reads exactly this many bytes, or raises


def _number(data: bytes) -> int:
    return int(_NUMBER.unpack(data)[0])


def read_bytes(read: Read) -> bytes:
    size = _number(read(8))
    if not 0 <= size <= MAX_REQUEST:
        raise ValueError(f"a value of {size} bytes, which is not what a store sends")
    return read(size)


def read_answer(op: int, fields: int, read: Read) -> list[bytes]:
    """Reads the answer after the status byte. `fields`: number of fields in the request."""
    if op in _NUMBERS:
        return [b"%d" % _number(read(8))]
    if op == Op.CHECK:
        return [b"%d" % (read(1)[0] == OK)]
    if op in (Op.GET, Op.COMPARE_SET):
        count = 1
    elif op in (Op.MULTI_GET, Op.AWAIT_VALUES):
        count = fields
    elif op == Op.POP:
        count = min(_number(read(8)), 1)  # torch's server returns the number of deleted keys
    else:
        count = _number(read(8)) if op == Op.LIST_KEYS else 0
    return [read_bytes(read) for _ in range(count)]


def answer(op: int, found: Sequence[bytes]) -> Iterable[bytes]:
    """What read_answer() reads as `found`. Raises ResourceError where that is more than a client may be sent."""
    if op in _NUMBERS:
        return (_NUMBER.pack(int(found[0])),)
    if op == Op.CHECK:
        return (b"\0" if found[0] == b"1" else b"\1",)
    if sum(map(len, found)) + 8 * len(found) > MAX_REQUEST:
        raise ResourceError(f"the answer is larger than {MAX_REQUEST} bytes")
    values = map(sized, found)
    return chain((_NUMBER.pack(len(found)),), values) if op in (Op.POP, Op.LIST_KEYS) else values


def sized(value: bytes) -> bytes:
    return _NUMBER.pack(len(value)) + value


class Table:
    """Keys to values, and queues. Not thread-safe. written(key): a value or an entry of a queue has come."""

    def __init__(self, written: Callable[[bytes], object] = len) -> None:
        self._values: dict[bytes, bytes] = {}
        self._queues: dict[bytes, deque[bytes]] = {}
        self._room, self._written = MAX_TOTAL, written
        self.missing = b""  # the key that the last request has to wait for

    def apply(self, op: int, fields: Sequence[bytes | int]) -> list[bytes] | None:
        """Executes a request atomically; None for one that has to wait.

        Raises ValueError for a malformed request or an `add` to text that is no number, ResourceError at a quota.
        """
        if op not in _EXECUTED:
            raise ValueError(f"request {op} is for a server")
        return _EXECUTED[op](self, *fields)

    def replay(self, request: bytes) -> list[bytes] | None:
        return self.apply(*decode(request))

    def holds(self, key: bytes) -> bool:
        return key in self._values

    def _check(self, key: bytes, size: int, grows: int) -> None:
        """Raises ResourceError where this key and a value of this size may not be written, or the store not grow so far."""
        if len(key) > MAX_KEY + 1:
            raise ResourceError(f"a key of {len(key) - 1} bytes; the store takes at most {MAX_KEY}")
        if size > MAX_VALUE:
            raise ResourceError(f"a value of {size} bytes for key '{_shown(key)}'; the store takes at most {MAX_VALUE}: move "
                                "data with collectives, the store is for addresses and counters")
        if grows > self._room:
            raise ResourceError(f"the store is full: {grows} bytes for key '{_shown(key)}' do not fit into the {self._room} left "
                                f"of {MAX_TOTAL}; delete keys that are no longer needed")

    def _set(self, key: bytes, value: bytes) -> list[bytes]:
        old = self._values.get(key)
        grows = len(value) + (_cost(key) if old is None else -len(old))
        self._check(key, len(value), grows)
        self._values[key] = value
        self._room -= grows
        self._written(key)
        return []

    def _multi_set(self, *fields: bytes) -> list[bytes]:
        """All of it is checked first; existing keys count as new ones."""
        pairs = list(zip(fields[::2], fields[1::2], strict=True))
        grows = sum(_cost(key) + len(value) for key, value in pairs)
        for key, value in pairs:
            self._check(key, len(value), grows)
        for key, value in pairs:
            self._set(key, value)
        return []

    def _append(self, key: bytes, value: bytes) -> list[bytes]:
        return self._set(key, self._values.get(key, b"") + value)

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> list[bytes]:
        now = self._values.get(key)
        if (now or b"") != expected:
            return [expected if now is None else now]
        self._set(key, desired)
        return [desired]

    def _add(self, key: bytes, amount: int) -> list[bytes]:
        old = self._values.get(key, b"0")
        digits = old.removeprefix(b"-")
        total = int(old) + amount if digits.isdigit() and len(digits) <= _DIGITS else 1 << 63
        if not -1 << 63 <= total < 1 << 63:
            raise ValueError(f"cannot add to key '{_shown(key)}': its value is not a decimal number, or the sum does not fit 64 "
                             "bits")
        self._set(key, b"%d" % total)
        return [b"%d" % total]

    def _delete(self, key: bytes) -> list[bytes]:
        value = self._values.pop(key, None)
        self._room += 0 if value is None else _cost(key) + len(value)
        return [b"%d" % (value is not None)]

    def _there(self, keys: Sequence[bytes], *, queues: bool = True) -> bool:
        """Whether all keys are; a queue with entries counts as a key, except for a request for values."""
        for key in keys:
            if key not in self._values and not (queues and key in self._queues):
                self.missing = key
                return False
        return True

    def _wait(self, *keys: bytes) -> list[bytes] | None:
        return [] if self._there(keys) else None

    def _await_values(self, *keys: bytes) -> list[bytes] | None:
        return [self._values[key] for key in keys] if self._there(keys, queues=False) else None

    def get(self, *keys: bytes) -> list[bytes]:
        if not self._there(keys, queues=False):
            raise ValueError("it asks for a key that is not there, without having waited for it")
        return [self._values[key] for key in keys]

    def _listed(self) -> list[bytes]:
        return [key for key in self._values if key.startswith(b"/")]

    def _push(self, key: bytes, value: bytes) -> list[bytes]:
        grows = _cost(key) + len(value)
        self._check(key, len(value), grows)
        self._queues.setdefault(key, deque()).append(value)
        self._room -= grows
        self._written(key)
        return []

    def _pop(self, key: bytes) -> list[bytes]:
        queue = self._queues.get(key)
        if not queue:
            return []
        value = queue.popleft()
        self._room += _cost(key) + len(value)
        if not queue:
            del self._queues[key]
        return [value]


_EXECUTED: dict[int, Callable[..., list[bytes] | None]] = {
    Op.SET: Table._set, Op.COMPARE_SET: Table._compare_set, Op.GET: Table.get, Op.ADD: Table._add,
    Op.CHECK: lambda table, *keys: [b"%d" % table._there(keys)], Op.WAIT: Table._wait,
    Op.NUM_KEYS: lambda table: [b"%d" % (len(table._listed()) + 1)],  # torch's counts one of its own
    Op.DELETE: Table._delete, Op.APPEND: Table._append, Op.MULTI_GET: Table.get, Op.MULTI_SET: Table._multi_set,
    Op.PUSH: Table._push, Op.POP: Table._pop, Op.QUEUE_LEN: lambda table, key: [b"%d" % len(table._queues.get(key, ()))],
    Op.LIST_KEYS: Table._listed, Op.AWAIT_VALUES: Table._await_values,
}


def _cost(key: bytes) -> int:
    return len(key) + _OVERHEAD


def _shown(key: bytes) -> str:
    return printable(key.removeprefix(b"/")[:_SHOWN])


def failure(status: int, answer: Sequence[bytes]) -> Exception:
    """The exception for a status other than OK."""
    text = printable(answer[0]) if answer else ""
    known = {CANCELLED: TimeoutError, BAD_REQUEST: ValueError, OVER_QUOTA: ResourceError}
    return known.get(status, DistStoreError)(text or f"answer {status}")

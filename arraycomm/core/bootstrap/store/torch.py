"""TorchStore: a client of torch.distributed's TCPStore server, spoken without torch. For joining torchrun's store.

The protocol is torch's, has no version negotiation and no authentication: whoever reaches the port reads and writes
the store. Nothing of ours that matters for admission lies in it; connections between ranks have their own handshake.
Little-endian; a request is one byte, then keys and values as u64 length and bytes.
"""

from __future__ import annotations

import enum
import itertools
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from ...base.errors import DistNetworkError, DistStoreError
from ...base.log import log
from ..address import means_loopback, resolve
from .base import barrier_timeout, seconds_of
from .connections import GRACE, Connections, grace
from .request import RequestStore, key_bytes
from .server import keep_alive
from .table import MAX_FRAME, Op

MAGIC = 0x3C85F7CE
_READY, _CANCELLED = 0, 1
_LONGEST = 2e6  # s; poll() counts milliseconds in 31 bits


class Request(enum.IntEnum):
    VALIDATE = 0
    SET = 1
    COMPARE_SET = 2
    GET = 3
    ADD = 4
    CHECK = 5
    WAIT = 6
    NUM_KEYS = 7
    DELETE = 8
    APPEND = 9
    MULTI_GET = 10
    MULTI_SET = 11
    CANCEL_WAIT = 12
    PING = 13
    QUEUE_PUSH = 14
    QUEUE_POP = 15
    QUEUE_LEN = 16
    LIST_KEYS = 17
    BARRIER = 18


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size, socket.MSG_WAITALL) if size else b""
    buffer = bytearray(data)
    while len(buffer) < size:  # a signal or a timeout may cut MSG_WAITALL short
        data = sock.recv(size - len(buffer))
        if not data:
            raise ConnectionResetError("the connection was closed")
        buffer += data
    return bytes(buffer)


def _number(sock: socket.socket) -> int:
    return int(struct.unpack("<q", _exactly(sock, 8))[0])


def _bytes(sock: socket.socket) -> bytes:
    size = _number(sock)
    if not 0 <= size <= MAX_FRAME:
        raise ValueError(f"a value of {size} bytes, which is not what a store sends")
    return _exactly(sock, size)


# By Op: what the request is here, its strings in turn (k: key, v: value, n: number), and its answer (N: number, 1: a value, K: as
# many as there are strings, *: a number of them, ?: one unless a number is 0, R: whether all keys are there)
_REQUESTS = {
    Op.SET: (Request.SET, "kv", ""),
    Op.GET: (Request.MULTI_GET, "k", "K"),
    Op.ADD: (Request.ADD, "kn", "N"),
    Op.COMPARE_SET: (Request.COMPARE_SET, "kvv", "1"),
    Op.APPEND: (Request.APPEND, "kv", ""),
    Op.DELETE: (Request.DELETE, "k", "N"),
    Op.CHECK: (Request.CHECK, "k", "R"),
    Op.NUM_KEYS: (Request.NUM_KEYS, "", "N"),
    Op.LIST_KEYS: (Request.LIST_KEYS, "", "*"),
    Op.PUSH: (Request.QUEUE_PUSH, "kv", ""),
    Op.POP: (Request.QUEUE_POP, "k", "?"),
    Op.QUEUE_LEN: (Request.QUEUE_LEN, "k", "N"),
}
_COUNTED = (Request.CHECK, Request.WAIT, Request.MULTI_GET, Request.MULTI_SET)  # how many there are comes first


def _blob(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


_FIELDS: dict[str, Callable[[bytes], bytes]] = {
    "k": lambda key: _blob(b"/" + key), "v": _blob, "n": lambda text: struct.pack("<q", int(text)),
}


def _encode(request: Request, kinds: str, strings: Sequence[bytes]) -> bytes:
    count = struct.pack("<Q", len(strings) // len(kinds)) if request in _COUNTED else b""
    fields = (_FIELDS[kind](string) for kind, string in zip(itertools.cycle(kinds), strings, strict=False))
    return b"".join((bytes([request]), count, *fields))


def _answer(sock: socket.socket, kind: str, strings: int) -> list[bytes]:
    """As a Table gives it."""
    if kind == "N":
        return [b"%d" % _number(sock)]
    if kind == "R":
        return [b"%d" % (_exactly(sock, 1)[0] == _READY)]
    counts = {"": 0, "1": 1, "K": strings}
    count = counts[kind] if kind in counts else _number(sock)
    return [_bytes(sock) for _ in range(min(count, 1) if kind == "?" else count)]


def opener(host: str, port: int, seconds: float) -> Callable[[], socket.socket]:
    """Not a method: the connections must not keep the store alive that owns them. seconds: for an answer to the greeting."""

    def attempt() -> socket.socket:
        failure: OSError | DistNetworkError = DistNetworkError(f"no address for {host}")
        for _, address in resolve(host, port):
            try:
                return _greet(socket.create_connection((address, port), seconds))
            except OSError as error:
                failure = error
        raise failure

    return attempt


def _greet(sock: socket.socket) -> socket.socket:
    nonce = os.urandom(4)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        sock.sendall(struct.pack("<BIB", Request.VALIDATE, MAGIC, Request.PING) + nonce)
        if _exactly(sock, 4) != nonce:
            raise ConnectionError("the server there is not torch's store")
    except BaseException:
        sock.close()
        raise
    return sock


class TorchStore(RequestStore):
    """Joins the store that a torch.distributed.TCPStore server (torchrun's agent) serves at `host` and `port`.

    Raises DistNetworkError when nobody serves it within `timeout`, DistStoreError when it is lost. Threads may share
    it, as TCPStore. `counts`: it is one of the workers that such a server waits for.
    """

    lists_keys = False  # an older one closes the connection instead

    def __init__(self, host: str, port: int, timeout: timedelta = timedelta(seconds=300), *,
                 counts: bool = False) -> None:
        super().__init__(timeout)
        self.host, self.port = host, port
        if not means_loopback(host):
            log().warning("joining torch's store at %s port %d: its protocol has no authentication", host, port)
        self._connections = Connections(opener(host, port, grace(timeout)), self._where())
        try:
            self._connections.wait_for_server(self.timeout.total_seconds())
            if counts:
                self._ask(_encode(Request.ADD, "vn", (b"init/", b"1")), "N")
        except BaseException:
            self.close()
            raise

    def _where(self) -> str:
        return f"torch store at {self.host} port {self.port}"

    def _call(self, op: int, args: Sequence[bytes], timeout: float) -> list[bytes]:
        end = time.monotonic() + timeout
        if not args and op in (Op.GET, Op.WAIT, Op.CHECK):  # torch's server would never answer
            return [b"1"] if op == Op.CHECK else []
        if op in (Op.GET, Op.WAIT):
            self._wait(_encode(Request.WAIT, "k", args), timeout)
        if op == Op.WAIT:
            return []
        request, kinds, kind = _REQUESTS[op]
        encoded = _encode(Request.MULTI_SET if op == Op.SET and len(args) != len(kinds) else request, kinds, args)
        answer = self._ask(encoded, kind, len(args))
        while op == Op.POP and not answer:
            if time.monotonic() >= end:
                raise TimeoutError
            self._wait(_encode(Request.WAIT, "k", args), end - time.monotonic())
            answer = self._ask(encoded, kind)
        return answer

    def _ask(self, request: bytes, kind: str, strings: int = 0) -> list[bytes]:
        with self._connections.use() as sock:
            sock.settimeout(GRACE)
            sock.sendall(request)
            return _answer(sock, kind, strings)

    def _wait(self, request: bytes, seconds: float) -> None:
        with self._connections.use() as sock:
            came = _came(sock, request, seconds)
        if not came:
            raise TimeoutError

    def add(self, key: str, amount: int) -> int:
        try:
            return super().add(key, amount)
        except DistStoreError:
            # torch's server hangs up on a value that is no number.
            if self.check([key]) and not self.get(key).lstrip(b"-").isdigit():
                raise ValueError(f"cannot add to key {key!r}: its value is not a decimal number") from None
            raise

    def list_keys(self) -> list[str]:
        return [key[1:] for key in super().list_keys() if key.startswith("/")]

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        seconds = seconds_of(self.timeout if timeout is None else timeout)
        try:
            self._wait(_encode(Request.BARRIER, "kn", (key_bytes(key), b"%d" % world_size)), seconds)
        except TimeoutError:
            raise barrier_timeout(key, world_size, seconds) from None

    def clone(self) -> TorchStore:
        return TorchStore(self.host, self.port, self.timeout)

    def close(self) -> None:
        self._connections.close()


def _came(sock: socket.socket, request: bytes, seconds: float) -> bool:
    """Whether what it waits for came. A wait that is given up is answered too, once or twice."""
    sock.sendall(request)
    sock.settimeout(min(max(seconds, 0.001), _LONGEST))
    try:
        return _exactly(sock, 1)[0] == _READY
    except TimeoutError:
        sock.settimeout(GRACE)
        sock.sendall(bytes([Request.CANCEL_WAIT]))
    answer = _exactly(sock, 1)[0]
    if answer == _READY:  # it came after all, while we gave up
        answer = _exactly(sock, 1)[0]
        if answer == _CANCELLED:
            return True
    if answer != _CANCELLED:
        raise ValueError(f"answer {answer} to a cancelled wait")
    return False

"""TorchStore: a client of torch.distributed's TCPStore server, spoken without torch. For joining torchrun's store.

The protocol is torch's, has no version negotiation and no authentication: whoever reaches the port reads and writes
the store. Nothing of ours that matters for admission lies in it; connections between ranks have their own handshake.
Little-endian; a request is one byte, then keys and values as u64 length and bytes.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from ...base.errors import DistNetworkError, DistStoreError, QueueEmptyError
from ...base.log import log
from ..address import means_loopback, resolve
from .base import Store, barrier_timeout, seconds_of, wait_timeout
from .connections import GRACE, Connections, grace
from .request import key_bytes, key_list, value_bytes
from .server import keep_alive
from .table import MAX_FRAME

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


_T = TypeVar("_T")


def _nothing(_: socket.socket) -> Any:
    """SET, APPEND, MULTI_SET and QUEUE_PUSH are not answered."""


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


def _optional(sock: socket.socket) -> list[bytes]:
    return [_bytes(sock)] if _number(sock) else []


def _blob(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _key(key: str) -> bytes:
    return _blob(b"/" + key_bytes(key))


def _many(keys: Sequence[str]) -> bytes:
    return struct.pack("<Q", len(keys)) + b"".join(map(_key, keys))


def _is_number(text: bytes) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


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


class TorchStore(Store):
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
                self._ask(Request.ADD, _blob(b"init/"), struct.pack("<q", 1), read=_number)
        except BaseException:
            self.close()
            raise

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(Request.SET, _key(key), _blob(value_bytes(value)))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        if not isinstance(amount, int):
            raise TypeError(f"add needs an int, got {type(amount).__name__}")
        try:
            return int(self._ask(Request.ADD, _key(key), struct.pack("<q", amount), read=_number))
        except DistStoreError:
            # torch's server hangs up on a value that is no number.
            if self.check([key]) and not _is_number(self.get(key)):
                raise ValueError(f"cannot add to key {key!r}: its value is not a decimal number") from None
            raise

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._ask(Request.COMPARE_SET, _key(key), _blob(value_bytes(expected)), _blob(value_bytes(desired)),
                         read=_bytes)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = seconds_of(self.timeout if timeout is None else timeout)
        keys = list(key_list(keys))
        if not keys:
            return  # torch's server would never answer
        with self._connections.use() as sock:
            if self._wait(sock, bytes([Request.WAIT]) + _many(keys), seconds):
                return
        raise wait_timeout(keys, seconds, self._where())

    def _where(self) -> str:
        return f"torch store at {self.host} port {self.port}"

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        seconds = seconds_of(self.timeout if timeout is None else timeout)
        with self._connections.use() as sock:
            if self._wait(sock, bytes([Request.BARRIER]) + _key(key) + struct.pack("<q", world_size), seconds):
                return
        raise barrier_timeout(key, world_size, seconds)

    def _wait(self, sock: socket.socket, request: bytes, seconds: float) -> bool:
        """Whether what it waits for came. A wait that is given up is answered too, once or twice."""
        sock.sendall(request)
        sock.settimeout(min(seconds, _LONGEST) or 0.001)
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

    def check(self, keys: Sequence[str]) -> bool:
        return not keys or self._ask(Request.CHECK, _many(key_list(keys)), read=lambda s: _exactly(s, 1))[0] == _READY

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(Request.DELETE, _key(key), read=_number))

    def num_keys(self) -> int:
        return self._ask(Request.NUM_KEYS, read=_number)

    def append(self, key: str, value: str | bytes) -> None:
        self._ask(Request.APPEND, _key(key), _blob(value_bytes(value)))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        keys = list(key_list(keys))
        if not keys:
            return []
        self.wait(keys)
        return self._ask(Request.MULTI_GET, _many(keys), read=lambda sock: [_bytes(sock) for _ in keys])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        if len(key_list(keys)) != len(values):
            raise DistStoreError(f"multi_set needs as many values as keys, got {len(keys)} keys and {len(values)}")
        pairs = [_key(key) + _blob(value_bytes(value)) for key, value in zip(keys, values, strict=True)]
        self._ask(Request.MULTI_SET, struct.pack("<Q", len(pairs)), *pairs)

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._ask(Request.QUEUE_PUSH, _key(key), _blob(value_bytes(value)))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        end = time.monotonic() + self.timeout.total_seconds()
        while True:
            if block:
                self.wait([key], timedelta(seconds=max(end - time.monotonic(), 0.0)))
            values = self._ask(Request.QUEUE_POP, _key(key), read=_optional)
            if values:
                return values[0]
            if not block:
                raise QueueEmptyError(f"queue {key!r} is empty")

    def queue_len(self, key: str) -> int:
        return self._ask(Request.QUEUE_LEN, _key(key), read=_number)

    def list_keys(self) -> list[str]:
        names = self._ask(Request.LIST_KEYS, read=lambda sock: [_bytes(sock) for _ in range(_number(sock))])
        return [name[1:].decode() for name in names if name.startswith(b"/")]

    def clone(self) -> TorchStore:
        return TorchStore(self.host, self.port, self.timeout)

    def close(self) -> None:
        self._connections.close()

    def _ask(self, request: int, *parts: bytes, read: Callable[[socket.socket], _T] = _nothing) -> _T:
        with self._connections.use() as sock:
            sock.settimeout(GRACE)
            sock.sendall(b"".join((bytes([request]), *parts)))
            return read(sock)

"""Connections of a store's client to its server: one per request under way, kept for the next one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from ...base.errors import AuthFailed, DistNetworkError, DistStoreError
from ...base.notice import Notice
from ...base.typed import TYPE_CHECKING, Protocol
from .base import barrier_timeout, seconds_of
from .request import RequestStore, key_bytes
from .table import BAD_REQUEST, CANCELLED, CLOSED, OK, OVER_QUOTA, Op, encode, failure, read_answer, read_bytes

if TYPE_CHECKING:
    from typing import TypeVar

    _Found = TypeVar("_Found")

GRACE = 5.0  # s that a server may be late with an answer before it counts as stopped
_RETRY = (0.01, 0.25)  # s between attempts to connect, first and longest
_LONGEST = 2e6  # s; poll() counts milliseconds in 31 bits


def grace(timeout: timedelta) -> float:
    """GRACE, or less: s that opening a connection may take, for a store of this timeout."""
    return min(GRACE, timeout.total_seconds())


class StoreLost(DistStoreError):
    """The server is gone, as opposed to a key that did not come."""


class StoreClosed(StoreLost):
    """It said goodbye: the process that served it has closed it, and lives."""


class Server(Protocol):
    def close(self, linger: float = 0.0) -> None: ...


_forks = 0  # between this process and the first; asking for the process id would be a system call per request


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def retried(attempt: Callable[[], _Found], seconds: float, where: str) -> _Found:
    """What attempt() gives, tried again while it raises OSError or DistNetworkError: a server, or its host's name, may not be
    there yet. One that refuses (AuthFailed) is not asked again. Raises DistNetworkError after `seconds`."""
    start = time.monotonic()
    pause, reason = _RETRY[0], ""
    notice = Notice(lambda waited: f"has waited {waited:.3g} s for the {where}, which nobody serves yet: {reason}")
    while True:
        try:
            return attempt()
        except AuthFailed:
            raise
        except (OSError, DistNetworkError) as error:
            waited = time.monotonic() - start
            reason = getattr(error, "strerror", None) or str(error)
            if waited + pause > seconds:
                raise DistNetworkError(
                    f"the client socket has timed out after {waited:.1f} s: nobody serves the {where} ({reason}); check "
                    "MASTER_ADDR and MASTER_PORT, that rank 0 (or the launcher) runs, and that a firewall lets this port "
                    "through") from None
        notice.tell()
        time.sleep(pause)
        pause = min(2 * pause, _RETRY[1])


class Connections:
    """`attempt` opens one and raises OSError or DistNetworkError. `where` names the server in errors.

    `server` is closed with the connections. Not usable in a child made by fork: both would read one stream.
    Sets and lists of connections change without the lock where one step, whole under the GIL, does it.
    """

    def __init__(self, attempt: Callable[[], socket.socket], where: str, server: Server | None = None) -> None:
        self._attempt, self._where, self._server = attempt, where, server
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._aside: list[socket.socket] = []
        self._lock = threading.Lock()
        self._closed = False
        self.said_goodbye = False  # the server
        self._forks = _forks
        self._finalizer = weakref.finalize(self, _close, self._idle, self._aside, server)

    def wait_for_server(self, seconds: float) -> None:
        """Opens the first connection. Raises as retried() does."""
        self._idle.append(retried(self._attempt, seconds, self._where))

    @contextlib.contextmanager
    def use(self) -> Iterator[socket.socket]:
        """A connection for one request and its answer. Raises DistStoreError when the server is gone."""
        sock = self._take()
        try:
            yield sock
        except BaseException as error:
            self._failed(sock, error)
            raise
        self._give_back(sock)

    def _failed(self, sock: socket.socket, error: BaseException) -> None:
        """Also after Ctrl-C a connection is not used again: an answer that comes later must not be taken for the next request's.

        But it stays open, because the server takes its end for that of the process.
        """
        self._discard(sock, aside=not isinstance(error, Exception))
        if isinstance(error, (OSError, ValueError)):
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> StoreLost:
        if self._closed:
            return StoreLost(f"the {self._where} was closed here")
        if self.said_goodbye:
            return StoreClosed(f"lost the {self._where}: the process that served it (rank 0, or the launcher) has closed it")
        reason = "it does not answer" if isinstance(error, TimeoutError) else str(error)
        return StoreLost(f"lost the {self._where}: {reason}; the process that serves it (rank 0, or the launcher) has ended "
                         "or is stopped")

    def _take(self) -> socket.socket:
        if self._forks != _forks:
            raise RuntimeError(f"the {self._where} was opened before a fork; open another store in the child")
        try:
            sock = self._idle.pop()
        except IndexError:
            sock = self._another()
        self._busy.add(sock)
        if self._closed:  # looked at after it is among the busy, which close() looks through after it set this
            self._discard(sock, aside=False)
            raise DistStoreError(f"the {self._where} was closed here")
        return sock

    def _another(self) -> socket.socket:
        if self._closed:
            raise DistStoreError(f"the {self._where} was closed here")
        try:
            return self._attempt()  # a server that was there a moment ago is not waited for
        except (OSError, DistNetworkError) as error:
            raise self._gone(error) from error

    def _give_back(self, sock: socket.socket) -> None:
        self._busy.discard(sock)
        self._idle.append(sock)
        if self._closed:  # meanwhile
            _close(self._idle, self._aside, None)

    def _discard(self, sock: socket.socket, *, aside: bool) -> None:
        self._busy.discard(sock)
        with self._lock:
            if aside and not self._closed:
                self._aside.append(sock)
                return
        sock.close()

    def close(self, linger: float = 0.0) -> None:
        """Idempotent. Requests under way in other threads end with DistStoreError. `linger` is for the server."""
        with self._lock:
            self._closed = True
            if self._forks == _forks:
                for sock in list(self._busy):
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)
        if self._finalizer.detach() is not None:
            _close(self._idle, self._aside, self._server, linger)


def _close(idle: list[socket.socket], aside: list[socket.socket], server: Server | None, linger: float = 0.0) -> None:
    for kept in idle, aside:
        while kept:
            with contextlib.suppress(IndexError):  # another thread took it
                kept.pop().close()
    if server is not None:
        server.close(linger)


class RemoteStore(RequestStore):
    """A store behind a server. Threads may share it: each request under way has a connection of its own."""

    _connections: Connections
    _tells: bool  # answers begin with a status, as our own servers' do

    def _call(self, op: int, fields: Sequence[bytes | int], timeout: float) -> list[bytes]:
        with self._connections.use() as sock:
            status, strings = self._exchange(sock, op, fields, timeout)
        if status:
            raise failure(status, strings)
        return strings

    def _exchange(self, sock: socket.socket, op: int, fields: Sequence[bytes | int], timeout: float) -> tuple[int, list[bytes]]:
        def read(size: int) -> bytes:
            return exactly(sock, size)

        send(sock, encode(op, fields))
        status, gave_up = OK, False
        if op in (Op.WAIT, Op.AWAIT_VALUES, Op.BARRIER):
            status, gave_up = _await(sock, timeout)
        elif self._tells:
            status = read(1)[0]
        if status == CLOSED:
            self._connections.said_goodbye = True
            raise ConnectionResetError("it was closed there")
        strings = read_answer(op, len(fields), read) if status == OK else []
        if status in (BAD_REQUEST, OVER_QUOTA):
            strings = [read_bytes(read)]
        elif status not in (OK, CANCELLED):
            raise ValueError(f"an answer of status {status}")
        if gave_up and status != CANCELLED:  # it came after all
            read(1)
        return status, strings

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        seconds = seconds_of(self.timeout if timeout is None else timeout)
        try:
            self._call(Op.BARRIER, [key_bytes(key), world_size], seconds)
        except TimeoutError:
            raise barrier_timeout(key, world_size, seconds) from None


def send(sock: socket.socket, request: bytes) -> None:
    sock.settimeout(GRACE)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what the server said before can still be read
        sock.sendall(request, socket.MSG_NOSIGNAL)


def exactly(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size, socket.MSG_WAITALL) if size else b""
    if len(data) == size:
        return data
    buffer = bytearray(data)
    while len(buffer) < size:  # a signal or a timeout may cut MSG_WAITALL short
        data = sock.recv(size - len(buffer))
        if not data:
            raise ConnectionResetError("the connection was closed")
        buffer += data
    return bytes(buffer)


def _await(sock: socket.socket, seconds: float) -> tuple[int, bool]:
    """The status of a request that waits, and whether it was given up first, which is answered, too."""
    sock.settimeout(min(max(seconds, 0.001), _LONGEST))
    try:
        return exactly(sock, 1)[0], False
    except TimeoutError:
        send(sock, encode(Op.CANCEL, []))
        return exactly(sock, 1)[0], True
    finally:
        sock.settimeout(GRACE)

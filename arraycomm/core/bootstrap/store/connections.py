"""Connections of a store's client to its server: one per pending request, kept for reuse."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeVar

from ...base.errors import AuthFailed, DistNetworkError, DistStoreError
from ...base.notice import Notice
from .base import barrier_timeout, seconds_of
from .request import RequestStore, key_bytes
from .table import BAD_REQUEST, CANCELLED, CLOSED, OK, OVER_QUOTA, Op, encode, failure, read_answer, read_bytes

_Found = TypeVar("_Found")

GRACE = 30.0  # s that an answer may be late before the server counts as stopped: its process may run what keeps the GIL
_OPENING = 5.0  # s that the greeting of a new connection may take
_RETRY = (0.01, 0.25)  # s between attempts to connect, first and longest
_AT_ONCE = 4096  # bytes, at least
_LONGEST = 2e6  # s; poll() counts milliseconds in 31 bits


def grace(timeout: timedelta) -> float:
    """Timeout in s of opening a connection: less for a store with a short timeout."""
    return min(_OPENING, timeout.total_seconds())


class StoreLost(DistStoreError):
    """The server is gone, in contrast to a missing key."""


class StoreClosed(StoreLost):
    """The server sent a shutdown notice: its process has closed it and is alive."""


class Server(Protocol):
    def close(self, linger: float = 0.0) -> None: ...


_forks = 0  # number of forks so far; getpid() would be a system call per request


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def retried(attempt: Callable[[], _Found], seconds: float, where: str) -> _Found:
    """The result of attempt(), retried while it raises OSError or DistNetworkError: the server or its host name may not exist
    yet. AuthFailed is not retried. Raises DistNetworkError after `seconds`."""
    start = time.monotonic()
    pause, reason = _RETRY[0], ""
    notice = Notice(lambda waited: f"has waited {waited:.3g} s for the {where}, which no process serves yet: {reason}")
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
                    f"the client socket has timed out after {waited:.1f} s: no process serves the {where} ({reason}); check "
                    "MASTER_ADDR and MASTER_PORT, that rank 0 (or the launcher) runs, and that a firewall lets this port "
                    "through") from None
        notice.tell()
        time.sleep(pause)
        pause = min(2 * pause, _RETRY[1])


class Connections:
    """`attempt` opens one and raises OSError or DistNetworkError. `where` names the server in errors.

    `server` is closed with the connections. Not usable in a child made by fork: both would read one stream.
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

    def run(self, exchange: Callable[[socket.socket], _Found]) -> _Found:
        """Sends a request and returns its answer. Raises DistStoreError if the server is gone.

        After Ctrl-C the connection is not reused: a late answer must not be taken for the next request's. But it stays open,
        because the server takes a closed connection for the end of the process.
        """
        sock = self._take()
        try:
            found = exchange(sock)
        except BaseException as error:
            self._give_back(sock, None if isinstance(error, Exception) else self._aside)
            if isinstance(error, (OSError, ValueError)):
                raise self._gone(error) from error
            raise
        self._give_back(sock, self._idle)
        return found

    def _gone(self, error: Exception | None) -> StoreLost:
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
        with self._lock:
            if self._closed:
                raise self._gone(None)
            if self._idle:
                self._busy.add(sock := self._idle.pop())
                return sock
        try:
            sock = self._attempt()  # no retries: the server was up a moment ago
        except (OSError, DistNetworkError) as error:
            raise self._gone(error) from error
        with self._lock:
            if not self._closed:
                self._busy.add(sock)
                return sock
        sock.close()
        raise self._gone(None)

    def _give_back(self, sock: socket.socket, kept: list[socket.socket] | None) -> None:
        with self._lock:
            self._busy.discard(sock)
            if kept is not None and not self._closed:
                kept.append(sock)
                return
        sock.close()

    def close(self, linger: float = 0.0) -> None:
        """Idempotent. Pending requests of other threads end with DistStoreError. `linger` is for the server."""
        with self._lock:
            self._closed = True
            for sock in self._busy if self._forks == _forks else ():
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        if self._finalizer.detach() is not None:
            _close(self._idle, self._aside, self._server, linger)


def _close(idle: list[socket.socket], aside: list[socket.socket], server: Server | None, linger: float = 0.0) -> None:
    for sock in (*idle, *aside):
        sock.close()
    if server is not None:
        server.close(linger)


class RemoteStore(RequestStore):
    """A store behind a server. Thread-safe: each pending request has its own connection."""

    host: str
    port: int
    _called: str
    _connections: Connections
    _tells: bool  # answers begin with a status byte, as those of our servers

    def _where(self) -> str:
        return f"{self._called} {self.host} port {self.port}"

    def close(self, linger: float = 0.0) -> None:
        """Ends the connections and, at the master, the server. Requests under way raise DistStoreError.

        `linger`: seconds that the server, closed to newcomers, waits for its clients to leave first.
        """
        self._connections.close(linger)

    def _call(self, op: int, fields: Sequence[bytes | int], timeout: float) -> list[bytes]:
        status, strings = self._connections.run(partial(self._exchange, encode(op, fields), op, len(fields), timeout))
        if status:
            raise failure(status, strings)
        return strings

    def _exchange(self, request: bytes, op: int, fields: int, timeout: float, sock: socket.socket) -> tuple[int, list[bytes]]:
        answer = Answer(sock)
        try:
            sock.sendall(request, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):  # data that the server sent before can still be read
            self._connections.said_goodbye |= answer.read(1)[0] == CLOSED
            raise
        status, gave_up = OK, False
        if op in (Op.WAIT, Op.AWAIT_VALUES, Op.BARRIER):
            status, gave_up = _await(sock, answer, timeout)
        elif self._tells:
            status = answer.read(1)[0]
        if status == CLOSED:
            self._connections.said_goodbye = True
            raise ConnectionResetError("it was closed there")
        strings = read_answer(op, fields, answer.read) if status == OK else []
        if status in (BAD_REQUEST, OVER_QUOTA):
            strings = [read_bytes(answer.read)]
        elif status not in (OK, CANCELLED):
            raise ValueError(f"an answer of status {status}")
        if gave_up and status != CANCELLED:  # the result arrived before the cancellation
            answer.read(1)
        self._connections.said_goodbye |= bool(answer.rest)  # the shutdown notice follows the last answer
        return status, strings

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        seconds = seconds_of(self.timeout if timeout is None else timeout)
        try:
            self._call(Op.BARRIER, [key_bytes(key), world_size], seconds)
        except TimeoutError:
            raise barrier_timeout(key, world_size, seconds) from None


class Answer:
    """A buffered reader of a server's answer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.rest = b""

    def read(self, size: int) -> bytes:
        if len(self.rest) < size:
            parts, missing = [self.rest], size - len(self.rest)
            while missing > 0:
                parts.append(self._sock.recv(max(missing, _AT_ONCE)))
                if not parts[-1]:
                    raise ConnectionResetError("the connection was closed")
                missing -= len(parts[-1])
            self.rest = b"".join(parts)
        found, self.rest = self.rest[:size], self.rest[size:]
        return found


def _await(sock: socket.socket, answer: Answer, seconds: float) -> tuple[int, bool]:
    """The status of a blocking request, and whether it was cancelled before. The server answers a cancellation, too."""
    sock.settimeout(min(max(seconds, 0.001), _LONGEST))
    try:
        return answer.read(1)[0], False
    except TimeoutError:
        sock.settimeout(GRACE)
        sock.sendall(encode(Op.CANCEL, []), socket.MSG_NOSIGNAL)
        return answer.read(1)[0], True
    finally:
        sock.settimeout(GRACE)

"""The server behind TCPStore: one thread answers all clients, another (auth.Acceptor) lets them in."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import threads
from ..auth import Acceptor, Hello, Purpose
from ..errors import ResourceError
from .table import Missing, Op, Table, appearing, decode, encode, frame_size

OK, TIMED_OUT, BAD_REQUEST, OVER_QUOTA, CLOSED = range(5)  # codes of answers; the middle two carry a text
# CLOSED is said to everybody at the end, whether or not something was asked.
MAX_WILLS = 64 << 10  # bytes of one client's last wills
_CHUNK = 256 << 10  # bytes taken from one client before the others get a turn

_log = logging.getLogger("arraycomm")


@dataclass(eq=False)
class _Client:
    sock: socket.socket
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    waiting: _Waiting | None = None  # its request that has not been answered
    wills: set[bytes] = field(default_factory=set)  # names


@dataclass(eq=False)
class _Waiting:
    op: int
    args: Sequence[bytes]
    end: float
    key: bytes  # the one missing key that it is listed under


class StoreServer:
    """Serves a Table on listening sockets, which it owns. A client that dies takes its waiting request with it."""

    def __init__(self, listeners: Sequence[socket.socket], secret: bytes | None, job: str) -> None:
        self._table = Table()
        self._clients: dict[int, _Client] = {}
        self._waiters: dict[bytes, list[_Client]] = {}
        self._wills: dict[bytes, tuple[_Client, Sequence[bytes]]] = {}  # by name: whose, and key, value, key, value...
        self._next_timeout = float("inf")
        self._left = threading.Condition()
        self._closed = False
        self._pid = os.getpid()
        # epoll itself rather than `selectors`: the kernel lets one thread add descriptors while another waits.
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="arraycomm-store", daemon=True)
        try:
            threads.start(self._thread)
            self._acceptor = Acceptor(listeners, secret, job, self._admit, check=_welcome, name="store-acceptor")
        except BaseException:
            self._end()
            raise

    def close(self, linger: float = 0.0) -> None:
        """Lets nobody else in, waits up to `linger` seconds for the clients to leave, then ends all. Idempotent."""
        if self._closed:
            return
        self._acceptor.close()
        if linger and self._pid == os.getpid():
            with self._left:
                self._left.wait_for(lambda: not self._clients, linger)
        self._end()

    def _end(self) -> None:
        self._closed = True
        if self._pid == os.getpid():
            os.eventfd_write(self._wake, 1)
            if self._thread.is_alive():
                self._thread.join()
        for client in self._clients.values():
            if self._pid == os.getpid() and not client.outgoing:
                with contextlib.suppress(OSError):  # it may have gone, or not read for long
                    client.sock.send(encode(CLOSED, ()))
            client.sock.close()
        self._clients.clear()
        self._epoll.close()
        os.close(self._wake)

    def _admit(self, sock: socket.socket, _: Hello) -> None:
        """In the acceptor's thread."""
        sock.setblocking(False)
        keep_alive(sock)
        self._clients[sock.fileno()] = _Client(sock)
        self._epoll.register(sock, select.EPOLLIN)

    def _run(self) -> None:
        while not self._closed:
            patience = self._next_timeout - time.monotonic()
            for descriptor, events in self._epoll.poll(None if patience == float("inf") else max(patience, 0.0)):
                client = self._clients.get(descriptor)
                if client is not None:
                    self._serve(client, events)
            if time.monotonic() >= self._next_timeout:
                self._expire()

    def _serve(self, client: _Client, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                self._flush(client)
            if events & ~select.EPOLLOUT:
                data = client.sock.recv(_CHUNK)
                if not data:
                    raise ConnectionResetError
                client.incoming += data
            self._progress(client)
        except BlockingIOError:
            return
        except ValueError as error:
            _log.warning("the store drops a client that sent nonsense: %s", error)
            self._drop(client)
        except OSError:
            self._drop(client)

    def _progress(self, client: _Client) -> None:
        """Carries the request out if it has come whole. A client sends the next one after the answer, never before."""
        if not client.incoming:
            return
        size = frame_size(client.incoming)
        if client.waiting is not None or client.outgoing or 0 < size < len(client.incoming):
            raise ValueError("a request before the last one's answer")
        if size == len(client.incoming):
            op, args, milliseconds = decode(client.incoming)
            client.incoming = bytearray()
            self._request(client, op, args, time.monotonic() + milliseconds / 1000)

    def _request(self, client: _Client, op: int, args: Sequence[bytes], end: float) -> None:
        if op == Op.WILL:
            self._answer(client, self._record_will(client, args))
            return
        answer = self._apply(op, args)
        if isinstance(answer, Missing):
            if end <= time.monotonic():
                self._answer(client, encode(TIMED_OUT, ()))
            else:
                client.waiting = _Waiting(op, args, end, answer.key)
                self._waiters.setdefault(answer.key, []).append(client)
                self._next_timeout = min(self._next_timeout, end)
            return
        try:
            self._answer(client, answer)
        finally:  # whoever waited gets it even if the one who brought it is gone
            for key in appearing(op, args):
                self._retry(key)

    def _record_will(self, client: _Client, args: Sequence[bytes]) -> bytes:
        """Any connection may withdraw a will; it is the last one that gave it whose end counts."""
        size = sum(map(len, args)) + sum(sum(map(len, self._wills[name][1])) for name in client.wills)
        if not len(args) % 2 or size > MAX_WILLS:
            return encode(BAD_REQUEST, [f"a will has a name, then keys and values; at most {MAX_WILLS} bytes".encode()])
        name, entries = args[0], args[1:]
        if name in self._wills:
            self._wills.pop(name)[0].wills.discard(name)
        if entries:
            self._wills[name] = client, entries
            client.wills.add(name)
        return encode(OK, ())

    def _execute_wills(self, client: _Client) -> None:
        for name in client.wills:
            entries = self._wills.pop(name)[1]
            for key, value in zip(entries[::2], entries[1::2], strict=True):
                self._apply(Op.COMPARE_SET, (key, b"", value))
                self._retry(key)

    def _apply(self, op: int, args: Sequence[bytes]) -> bytes | Missing:
        try:
            answer = self._table.apply(op, args)
        except ValueError as error:
            return encode(BAD_REQUEST, [str(error).encode()])
        except ResourceError as error:
            return encode(OVER_QUOTA, [str(error).encode()])
        return answer if isinstance(answer, Missing) else encode(OK, answer)

    def _retry(self, key: bytes) -> None:
        """Looks again at the requests that waited for a key. Those that miss another are listed under that."""
        for client in self._waiters.pop(key, ()):
            waiting = client.waiting
            assert waiting is not None
            answer = self._apply(waiting.op, waiting.args)
            if isinstance(answer, Missing):
                waiting.key = answer.key
                self._waiters.setdefault(answer.key, []).append(client)
                continue
            client.waiting = None
            with contextlib.suppress(OSError):  # a dead client is noticed by its own event
                self._answer(client, answer)

    def _expire(self) -> None:
        now = time.monotonic()
        waiting = [client for client in self._clients.values() if client.waiting is not None]
        for client in waiting:
            if client.waiting is not None and client.waiting.end <= now:
                self._forget_waiting(client)
                with contextlib.suppress(OSError):
                    self._answer(client, encode(TIMED_OUT, ()))
        self._next_timeout = min((c.waiting.end for c in waiting if c.waiting is not None), default=float("inf"))

    def _forget_waiting(self, client: _Client) -> None:
        assert client.waiting is not None
        listed = self._waiters[client.waiting.key]
        listed.remove(client)
        if not listed:
            del self._waiters[client.waiting.key]
        client.waiting = None

    def _answer(self, client: _Client, frame: bytes) -> None:
        try:
            sent = client.sock.send(frame)
        except BlockingIOError:
            sent = 0
        if sent < len(frame):
            client.outgoing += memoryview(frame)[sent:]
            self._epoll.modify(client.sock, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, client: _Client) -> None:
        sent = client.sock.send(client.outgoing)
        del client.outgoing[:sent]
        if not client.outgoing:
            self._epoll.modify(client.sock, select.EPOLLIN)

    def _drop(self, client: _Client) -> None:
        if client.waiting is not None:
            self._forget_waiting(client)
        del self._clients[client.sock.fileno()]
        client.sock.close()  # which also takes it out of the epoll set
        self._execute_wills(client)
        with self._left:
            self._left.notify_all()


def _welcome(hello: Hello) -> str | None:
    return None if hello.purpose is Purpose.STORE else f"this is a store, not a port for {hello.purpose.value}"


def keep_alive(sock: socket.socket) -> None:
    """A host that vanished without a word is noticed within about 6 s."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)

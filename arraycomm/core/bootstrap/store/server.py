"""The server behind TCPStore: one thread serves all clients, another (auth.Acceptor) admits them.

Ours are authenticated. Clients of torch.distributed's TCPStore speak a protocol without authentication and without errors: on
loopback a client must run under our user, from elsewhere it is let in only where ARRAYCOMM_TORCH_STORE=1 asks for that; a request
that cannot be carried out ends the connection, and so does one that is not whole after 60 s, or with which such requests and
unread answers hold more than 128 MiB in all.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from ...base import settings, threads
from ...base.errors import AuthFailed, ResourceError
from ...base.log import log
from ...base.printable import printable
from ..address import is_loopback
from ..auth import Acceptor, Hello, Purpose, check_user
from .table import BAD_REQUEST, CANCELLED, CLOSED, MAGIC, OVER_QUOTA, Op, Table, answer, parse, sized

_LOG_EVERY = 60.0  # s: rate limit of log messages
_PIECE = 64 << 10  # bytes that are received or sent at once, at least
_KEPT = 16 << 10  # bytes of a client of torch's kind that are not counted
_MOST_HELD = 128 << 20  # bytes of all clients of torch's kind: requests not whole, or waiting, and unread answers
_FIELD = 64  # bytes that a field takes beside its contents
_WHOLE = 60.0  # s until a request of theirs must be whole
_LOOK = 1.0  # s between two checks for incomplete ones
_MOST_WILLS = 64 << 10  # bytes of one client's
_GREETING = MAGIC.to_bytes(4, "little")


class _Client:
    """waits: the request and its fields, while its keys are missing. begun: when the first byte of an incomplete one came.
    missing: why its answer ends early."""

    def __init__(self, sock: socket.socket, member: bool) -> None:
        self.sock, self.member = sock, member
        self.received, self.unsent, self.parts = bytearray(), bytearray(), iter(())  # the last: the rest of its answer
        self.waits: tuple[int, list[Any]] | None = None
        self.missing: ValueError | None = None
        self.broken = False
        self.begun = 0.0
        self.moved = time.monotonic()  # the last byte in either direction
        self._whole = 0  # bytes of the last request
        self._fresh()

    parts: Iterator[bytes]

    def _fresh(self) -> None:
        self._parser, self._partial = parse(self.member), 0
        self._need = next(self._parser)

    def held(self) -> int:
        return self.received.__alloc__() + self.unsent.__alloc__() + self._partial + (self._whole if self.waits else 0)

    def receive(self) -> bool:
        """False at the end of the connection."""
        data = self.sock.recv(max(_PIECE, self._need - len(self.received)))
        self.received += data
        self.moved = time.monotonic()
        return bool(data)

    def request(self) -> tuple[int, list[Any]] | None:
        """The next one that is whole. Raises ValueError for an invalid one."""
        while len(self.received) >= self._need:
            data = bytes(memoryview(self.received)[:self._need])
            del self.received[:self._need]
            self._partial += len(data) + _FIELD
            try:
                self._need = self._parser.send(data)
            except StopIteration as end:
                self._whole, self.begun = self._partial, 0.0
                self._fresh()
                found: tuple[int, list[Any]] = end.value
                return found
        if not self.begun and (self.received or self._partial):
            self.begun = time.monotonic()
        return None

    def disconnect(self) -> None:
        """A child made by fork has its socket too, so close() alone would not reach the client."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def send(self) -> None:
        """As much of its answer as it reads now. Raises ValueError where the rest is missing, once all before it is sent."""
        while True:
            try:
                while not self.missing and len(self.unsent) < _PIECE and (part := next(self.parts, None)) is not None:
                    self.unsent += part
            except ValueError as error:
                self.missing = error
            if not self.unsent:
                if self.missing:
                    raise self.missing
                return
            with contextlib.suppress(BlockingIOError):
                del self.unsent[:self.sock.send(self.unsent, socket.MSG_NOSIGNAL)]
                self.moved = time.monotonic()
                continue
            return


class StoreServer:
    """Serves a table on listening sockets, which it owns. A dead client's pending request is dropped.

    torch: it serves clients of torch.distributed's TCPStore, too."""

    def __init__(self, listeners: Sequence[socket.socket], secret: bytes | None, job: str, *, torch: bool = False) -> None:
        self._written: list[bytes] = []
        self._table = Table(self._written.append)
        self._clients: set[_Client] = set()
        self._strangers: set[_Client] = set()  # those of torch's kind among them
        self._broken: list[_Client] = []
        self._arrived: deque[_Client] = deque()
        self._waiting: dict[bytes, list[_Client]] = {}
        self._wills: dict[bytes, tuple[_Client, list[bytes]]] = {}
        self._due: list[list[bytes]] = []  # wills of disconnected clients
        self._complaints, self._next_complaint = 0, 0.0
        self._checked = not secret  # the user ids of clients on loopback have been
        self._end: float | None = None  # time.monotonic() at which the last clients are disconnected
        self._closed, self._pid = False, os.getpid()
        try:
            self._selector = selectors.DefaultSelector()
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            raise ResourceError(f"cannot start the store's server: {error.strerror}; see `ulimit -n`") from error
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="arraycomm-store", daemon=True)
        try:
            threads.start(self._thread)
            self._acceptor = Acceptor(listeners, secret, job, self._admit, check=_welcome, name="store-acceptor",
                                      gate=self.admit_stranger if torch else None)
        except BaseException:
            self._stop(0.0)
            raise

    # ---- calls of other threads ----

    def close(self, linger: float = 0.0) -> None:
        """Stops accepting, waits up to `linger` seconds for the clients to disconnect, then closes all. Idempotent."""
        if not self._closed:
            self._acceptor.close()
            self._stop(linger)

    def _stop(self, linger: float) -> None:
        self._closed = True
        if self._pid == os.getpid():  # a forked child has no thread, only copies of the descriptors
            self._end = time.monotonic() + linger
            os.eventfd_write(self._wake, 1)
            if self._thread.is_alive():
                self._thread.join()
        for client in (*self._clients, *self._arrived):
            if self._pid == os.getpid():
                client.disconnect()
            client.sock.close()
        self._selector.close()
        os.close(self._wake)

    def _admit(self, sock: socket.socket, _: Hello) -> None:
        if sock.family != socket.AF_UNIX:
            keep_alive(sock)
        self._welcome(_Client(sock, True))

    def admit_stranger(self, sock: socket.socket) -> None:
        """Takes a client of torch's kind, or raises AuthFailed."""
        if is_loopback(sock.getpeername()[0]):
            if not self._checked:
                check_user(sock, None)
        elif not settings.get_flag("ARRAYCOMM_TORCH_STORE"):
            raise AuthFailed("it speaks the protocol of torch's store, which has no authentication and is served on loopback "
                             "only, unless ARRAYCOMM_TORCH_STORE=1 accepts the risk")
        keep_alive(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._welcome(_Client(sock, False))

    def _welcome(self, client: _Client) -> None:
        client.sock.setblocking(False)
        self._arrived.append(client)
        os.eventfd_write(self._wake, 1)

    # ---- the thread ----

    def _run(self) -> None:
        while self._end is None or not self._may_end(self._end):
            for key, _ in self._selector.select(self._patience()):
                if key.data is None:
                    os.eventfd_read(self._wake)
                elif not key.data.broken:
                    self._serve(key.data)
            while self._arrived:
                client = self._arrived.popleft()
                self._clients.add(client)
                if not client.member:
                    self._strangers.add(client)
                self._selector.register(client.sock, selectors.EVENT_READ, client)
            self._sweep()
        for client in self._clients:
            if client.member and not client.unsent:  # for the others the end of the connection is the notice
                with contextlib.suppress(OSError):
                    client.sock.send(bytes((CLOSED,)), socket.MSG_NOSIGNAL)

    def _may_end(self, end: float) -> bool:
        """Once all remaining clients wait for keys that no client can set any more: ranks that reconnected for the next world
        before this server, of the last one, was closed. They look for the next server after this one's end."""
        return time.monotonic() >= end or (not self._arrived and all(client.waits for client in self._clients))

    def _patience(self) -> float | None:
        if self._end is not None:
            return max(self._end - time.monotonic(), 0.0)
        return _LOOK if any(client.begun for client in self._strangers) else None

    def _serve(self, client: _Client) -> None:
        try:
            if not client.unsent and not client.receive():
                self._disconnect(client)
            self._advance(client)
        except BlockingIOError:
            return
        except (OSError, MemoryError):
            self._disconnect(client)
        if not client.member and client.held() > _KEPT:
            self._limit()

    def _advance(self, client: _Client) -> None:
        """Carries out arrived requests, until one waits or its client stops reading answers."""
        while not client.broken:
            self._send(client)
            if client.broken or client.unsent or (client.waits and not self._cancels(client)):
                return
            try:
                request = client.request()
            except ValueError as error:
                self._disconnect(client, str(error))
                return
            if request is None:
                return
            self._execute(client, *request)
            self._wake_waiters()

    def _send(self, client: _Client) -> None:
        blocked = bool(client.unsent)
        try:
            client.send()
        except ValueError as error:  # of values that are read from the table as they are sent
            self._disconnect(client, str(error))
        except (OSError, MemoryError):
            self._disconnect(client)
        if not client.broken and blocked != bool(client.unsent):
            self._selector.modify(client.sock, selectors.EVENT_READ if blocked else selectors.EVENT_WRITE, client)

    def _cancels(self, client: _Client) -> bool:
        """After a waiting request only its cancellation may arrive. Whether it has."""
        if not client.received:
            return False
        if client.received[0] != Op.CANCEL:
            self._disconnect(client, "it asks for more while it waits")
            return False
        client.waits = None
        return True

    def _execute(self, client: _Client, op: int, fields: list[Any]) -> None:
        try:
            client.parts = self._answer(client, op, fields)
        except (ValueError, ResourceError, MemoryError) as error:
            text = str(error) or "the store's process is out of memory"
            if not client.member:
                self._disconnect(client, text)
            status = BAD_REQUEST if isinstance(error, ValueError) else OVER_QUOTA
            client.parts = iter((bytes((status,)), sized(text.encode(errors="backslashreplace"))))

    def _answer(self, client: _Client, op: int, fields: list[Any]) -> Iterator[bytes]:
        """The bytes of the answer; none of a request that waits."""
        if op == Op.BARRIER:
            op, fields = Op.WAIT, [self._arrive(*fields)]
        if op == Op.CANCEL:  # of a client that cancels its wait, or of a wait that was answered meanwhile
            return iter((bytes((CANCELLED,)),))
        status = b"\0" if client.member or op == Op.WAIT else b""
        if op in (Op.VALIDATE, Op.PING):
            if op == Op.VALIDATE and fields[0] != _GREETING:
                raise ValueError("it does not speak the protocol of torch's store")
            return iter((status, fields[0] if op == Op.PING else b""))
        if op == Op.WILL:
            self._record_will(client, *fields)
            return iter((status,))
        if op in (Op.GET, Op.MULTI_GET) and not client.member:
            return (sized(self._table.get(key)[0]) for key in fields)
        found = self._table.apply(op, fields)
        if found is None:
            client.waits = op, fields
            self._waiting.setdefault(self._table.missing, []).append(client)
            return iter(())
        return chain((status,), answer(op, found))

    def _arrive(self, key: bytes, size: int) -> bytes:
        """Counts one that came to a barrier. Returns the key that is there once all have."""
        complete = b"\0barrier/" + key
        came = self._table.apply(Op.ADD, (key, 1))
        if came and int(came[0]) >= size:
            self._table.apply(Op.SET, (complete, b""))
        return complete

    def _wake_waiters(self) -> None:
        """Retries the requests that waited for keys that now exist."""
        while self._written:
            for client in self._waiting.pop(self._written.pop(), ()):
                if client.waits and not client.broken:
                    waits, client.waits = client.waits, None
                    self._execute(client, *waits)
                    self._send(client)

    # ---- ends ----

    def _record_will(self, client: _Client, name: bytes, _: bytes, *entries: bytes) -> None:
        """What is written where the keys are missing, when this client is disconnected. One of each name, of its last writer."""
        held = sum(len(field) + 8 for owner, will in self._wills.values() if owner is client for field in will)
        if held + sum(len(field) + 8 for field in (name, *entries)) > _MOST_WILLS:
            raise ValueError(f"a will has a name, then keys and values; at most {_MOST_WILLS} bytes")
        self._wills.pop(name, None)
        if entries:
            self._wills[name] = client, list(entries)

    def _disconnect(self, client: _Client, reason: str = "") -> None:
        if client.broken:
            return
        client.broken = True
        self._broken.append(client)
        if client.member or not reason:
            return
        self._complaints += 1
        now = time.monotonic()
        if now >= self._next_complaint:
            self._next_complaint = now + _LOG_EVERY
            log().warning("a client of torch's kind is disconnected, as its protocol has no errors: %s (%d so far; this is said "
                          "once a minute)", printable(reason), self._complaints)

    def _sweep(self) -> None:
        """Drops disconnected clients, and writes their last wills, those that did not fit before too."""
        for client in self._strangers:
            if client.begun and time.monotonic() - client.begun > _WHOLE:
                self._disconnect(client, f"a request that was not whole after {_WHOLE:g} s")
        while self._broken:
            self._drop(self._broken.pop())
        self._due = [will for will in self._due if not self._write_will(will)]
        self._wake_waiters()

    def _drop(self, client: _Client) -> None:
        self._clients.remove(client)
        self._strangers.discard(client)
        self._selector.unregister(client.sock)
        client.disconnect()
        client.sock.close()
        for name in [name for name, (owner, _) in self._wills.items() if owner is client]:
            self._due.append(self._wills.pop(name)[1])

    def _write_will(self, entries: list[bytes]) -> bool:
        try:
            for key, value in zip(entries[::2], entries[1::2], strict=True):
                if not self._table.holds(key):
                    self._table.apply(Op.SET, (key, value))
        except ResourceError:
            return False
        return True

    def _limit(self) -> None:
        """Disconnects the clients of torch's kind idle for longest, until the others are within the bound."""
        held = [client for client in self._strangers if not client.broken and client.held() > _KEPT]
        held.sort(key=lambda client: client.moved, reverse=True)
        total = sum(client.held() for client in held)
        while total > _MOST_HELD:
            oldest = held.pop()
            total -= oldest.held()
            self._disconnect(oldest, "requests that are not whole, or wait, and answers that are not read hold more than 128 MiB")


def _welcome(hello: Hello) -> str | None:
    return None if hello.purpose is Purpose.STORE else f"this is a store, not a port for {hello.purpose.value}"


def keep_alive(sock: socket.socket) -> None:
    """TCP keepalive: a host that fails without a FIN or RST is detected within about 6 s."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)

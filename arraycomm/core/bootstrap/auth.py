"""Authenticated sockets: the handshake of handshake.py on a connected socket, and the acceptor thread."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from hmac import compare_digest
from typing import Any, NamedTuple

from ..base import threads
from ..base.deadline import Deadline, grown
from ..base.errors import AuthFailed
from ..base.log import log
from ..base.printable import printable
from .address import is_loopback
from .connect import connect_tcp
from .handshake import HELLO_BYTES, NONCE_BYTES, REMEDY, TAG_BYTES, Check, Hello, Purpose, ServerHandshake, Status, bound, tag

__all__ = ["Acceptor", "Hello", "Purpose", "check_user", "client_handshake", "connect"]

SECONDS = 2.0  # for a whole handshake
MAX_HALF_OPEN = 64
_LOG_EVERY = 60.0  # s: rate limit of log messages about unauthenticated connections
_RETRY_ACCEPT = 0.1  # s without accepting after descriptors ran out
_SHORTAGE = 2.0  # s without descriptors after which the owner is notified
_OUT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_RETRY_DROPPED = 0.05  # s before a retry to a busy server

_CAUSES = ("it is not a rank of an arraycomm job of this version, runs as another user without a common secret, or is "
           "stopped, too busy or out of descriptors; check address and port, and what it printed")


class HandshakeBroken(AuthFailed):
    """The handshake ended without a verdict; the other side may have been too busy."""


def client_handshake(sock: socket.socket, secret: bytes | None, hello: Hello, *, deadline: float = SECONDS,
                     remaining: Deadline | None = None) -> None:
    """Proves this rank to the server on a connected, blocking socket, and the server to this rank, within `deadline` seconds.
    remaining: the rest of these seconds, in a retry.

    Raises AuthFailed that says why and what to do; the caller closes the socket.
    """
    unix = sock.family == socket.AF_UNIX
    if unix:
        check_user(sock, secret)  # another user's process must not get a proof
    transcript = hello.encode() + os.urandom(NONCE_BYTES)
    peer = _peer(sock)  # before the exchange: after a reset getpeername() fails
    remaining = remaining or Deadline(deadline)
    try:
        called = where(sock.getpeername())
        sock.sendall(transcript)  # fits into the empty send buffer
        transcript += _receive(sock, NONCE_BYTES, remaining)
        proof = tag(secret, bound(b"client", hello.purpose, called), transcript)
        sock.sendall(proof)
        verdict = _receive(sock, 1 + TAG_BYTES, remaining)
        sock.settimeout(None)
    except OSError as error:
        raise _broken(peer, deadline, error) from error
    signed = compare_digest(verdict[1:], tag(secret, bound(b"server", hello.purpose, called), transcript + proof + verdict[:1]))
    if verdict[0] == Status.ADMITTED and signed:
        if not unix:
            check_user(sock, secret)  # only now: before accept() the peer's user is unknown
        return
    if verdict[0] not in tuple(Status):
        raise AuthFailed(f"{peer} answered something else than a rank does: {_CAUSES}")
    status = Status(verdict[0]) if verdict[0] in tuple(REMEDY) else Status.WRONG_SECRET
    raise AuthFailed(f"{peer} refused this connection (job {hello.job!r}, {hello.purpose.value}): {REMEDY[status]}")


def _receive(sock: socket.socket, size: int, remaining: Deadline) -> bytes:
    """Raises TimeoutError when `remaining` has expired, ConnectionError if the peer has closed. The socket keeps a
    timeout."""
    data = b""
    while len(data) < size:
        try:
            with remaining.slice() as seconds:
                sock.settimeout(seconds)
                chunk = sock.recv(size - len(data))
        except TimeoutError:
            continue  # poll once more after expiry: this process may have been stopped during its last slice
        except BlockingIOError:
            raise TimeoutError from None
        if not chunk:
            raise ConnectionAbortedError
        data += chunk
    return data


def _has_left(sock: socket.socket) -> bool:
    """Whether the client of a non-blocking socket has closed it: it will reconnect, and must not be counted twice."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


def _broken(peer: str, seconds: float, error: OSError) -> HandshakeBroken:
    if isinstance(error, TimeoutError):
        return HandshakeBroken(f"{peer} did not complete the handshake within {seconds:g} s: {_CAUSES}")
    if isinstance(error, ConnectionAbortedError):
        return HandshakeBroken(f"{peer} closed the connection during the handshake: {_CAUSES}")
    return HandshakeBroken(f"the connection to {peer} broke during the handshake ({error.strerror}): {_CAUSES}")


def connect(address: str, port: int, secret: bytes | None, hello: Hello, *, deadline: float,
            source: str | None = None) -> socket.socket:
    """A connected, authenticated TCP socket (blocking, no delay). A refused or unreachable address is not retried.

    `source`: the local address, and so the interface, to connect from.

    Raises OSError if the address is unreachable, AuthFailed if authentication fails. A server that is too busy to answer
    (its table of half-open connections is full) is retried until `deadline` seconds have passed.
    """
    def reach(remaining: Deadline) -> socket.socket:
        sock = connect_tcp(address, port, remaining, source)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        return sock

    return persist(reach, secret, hello, deadline=deadline)


def persist(reach: Callable[[Deadline], socket.socket], secret: bytes | None, hello: Hello, *, deadline: float) -> socket.socket:
    """Connects by reach() and authenticates. Retries if the server ends the handshake without a result, see connect()."""
    remaining = Deadline(deadline)
    while True:
        sock = reach(remaining)
        try:
            # Longer than a server waits for a handshake: a peer may be stopped for a moment, or wait for a CPU.
            client_handshake(sock, secret, hello, deadline=deadline, remaining=remaining)
            return sock
        except HandshakeBroken:
            sock.close()
            if remaining.left <= _RETRY_DROPPED:
                raise
            with remaining.slice(_RETRY_DROPPED) as seconds:
                time.sleep(seconds)
        except BaseException:
            sock.close()
            raise


def check_user(sock: socket.socket, secret: bytes | None) -> None:
    """Refuses another user of this machine: on Unix sockets always, on TCP where there is no secret to tell.

    Raises AuthFailed.
    """
    if sock.family == socket.AF_UNIX:
        uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    elif secret or not is_loopback(sock.getpeername()[0]):
        return
    else:
        uid = _loopback_user(sock)
    if uid is not None and uid != os.geteuid():
        raise AuthFailed(f"{_peer(sock)} runs as user {uid}, this rank as {os.geteuid()}: all ranks of a job must run "
                         "as one user, or share a secret (ARRAYCOMM_SECRET_FILE)")


def _loopback_user(sock: socket.socket) -> int | None:
    from . import loopback  # lazy: only for jobs without a secret

    try:
        return loopback.user(sock)
    except ConnectionAbortedError:
        raise HandshakeBroken(f"{_peer(sock)} has disconnected, or the kernel does not report its user") from None


def where(name: Any) -> bytes:
    """The server's address of a connection, equal on both sides: getpeername() on the client, getsockname() on the server.
    Without the scope of a link-local address, which differs between hosts."""
    if not isinstance(name, tuple):
        return os.fsencode(name)
    return f"{name[0].partition('%')[0].removeprefix('::ffff:')} port {name[1]}".encode()


def _peer(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "the other side"
    return f"{name[0]} port {name[1]}" if isinstance(name, tuple) else printable(name) or "a local process"


class _HalfOpen(NamedTuple):
    handshake: ServerHandshake
    end: float


class Acceptor:
    """Accepts on listening sockets in a daemon thread and passes every authenticated connection to `callback(sock, hello)`.

    The callback runs in that thread, must not block, and owns the socket (blocking; TCP without delay); if it raises,
    that is logged and the socket closed. Strangers cost at most 64 descriptors, and as many on Unix sockets, for 2 s each (in a
    world of more than 32 ranks, longer, and of more than 64, one for each rank), however slowly they talk, and one line in the
    log a minute. The listening sockets belong to the Acceptor. Where
    descriptors or memory for connections stay out for 2 s, `on_shortage(error)` is called now and then. Not usable after a fork.

    A gate takes connections (not blocking, nothing of them read) that speak something else, known by a first byte of 0; it
    owns the socket, or raises AuthFailed.
    """

    def __init__(self, listeners: Sequence[socket.socket], secret: bytes | None, job: str,
                 callback: Callable[[socket.socket, Hello], None], *, check: Check | None = None,
                 on_shortage: Callable[[OSError], None] | None = None, name: str = "acceptor",
                 gate: Callable[[socket.socket], None] | None = None, ranks: int = 1) -> None:
        self._seconds, self._room = grown(SECONDS, ranks), max(MAX_HALF_OPEN, ranks)
        self._listeners, self._secret, self._job = list(listeners), secret, job
        self._callback, self._check, self._on_shortage, self._gate = callback, check, on_shortage, gate
        self._short_since = self._short_last = 0.0
        self._half_open: dict[socket.socket, _HalfOpen] = {}  # oldest first, in the order of expiry
        self._selector = selectors.DefaultSelector()
        self._paused_until = 0.0
        self._complaints, self._next_complaint = 0, 0.0
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"arraycomm-{name}", daemon=True)
        try:
            threads.start(self._thread)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stops accepting, closes the listening and the half-open sockets, joins the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid():  # a forked child has no thread, only copies of the descriptors
            os.eventfd_write(self._wake, 1)
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join()
        for sock in [*self._half_open, *self._listeners]:
            sock.close()
        self._half_open.clear()
        self._selector.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(self._patience()):
                if self._closed:
                    return
                if key.data is not None:
                    self._accept(key.data)
                elif isinstance(key.fileobj, socket.socket):
                    self._progress(key.fileobj)
            if not self._closed:
                self._expire()

    def _patience(self) -> float | None:
        ends = [half.end for half in list(self._half_open.values())[:1]]
        if self._paused_until:
            ends.append(self._paused_until)
        return max(min(ends) - time.monotonic(), 0.0) if ends else None

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in _OUT:
                self._pause(error)
            return  # anything else: the connection was gone before it was accepted
        try:
            check_user(sock, self._secret)
            sock.setblocking(False)
            handshake = ServerHandshake(self._secret, self._job, self._check, where(sock.getsockname()))
            self._selector.register(sock, selectors.EVENT_READ)
        except (AuthFailed, OSError) as error:
            self._complain(sock, str(error))
            sock.close()
            if isinstance(error, OSError) and error.errno in _OUT:
                self._pause(error)
            return
        self._half_open[sock] = _HalfOpen(handshake, time.monotonic() + self._seconds)
        self._make_room(sock.family)
        self._progress(sock)  # in most cases data has arrived already

    def _make_room(self, family: int) -> None:
        """Evicts a half-open connection. TCP and Unix sockets have separate limits, so that other users cannot block this user's
        processes. Silent connections are evicted before those that have sent a Hello."""
        alike = [sock for sock in self._half_open if sock.family == family]
        if len(alike) > self._room:
            silent = [sock for sock in alike[:-1] if self._half_open[sock].handshake.silent]
            self._drop((silent or alike)[0], f"more than {self._room} connections had not identified themselves")

    def _pause(self, error: OSError) -> None:
        """Stops polling the listeners for a while: without descriptors, a level-triggered poll would busy-loop."""
        if self._paused_until:
            return  # already paused by another listener in this round
        for sock in list(self._half_open):
            self._drop(sock, str(error.strerror))
        for listener in self._listeners:
            self._selector.unregister(listener)
        now = time.monotonic()
        self._paused_until = now + _RETRY_ACCEPT
        # One accepted connection does not end the shortage: connections that share the last descriptor all stay half open.
        if now - self._short_last > _SHORTAGE:
            self._short_since = now
        self._short_last = now
        if self._on_shortage is not None and now - self._short_since > _SHORTAGE:
            self._on_shortage(error)

    def _progress(self, sock: socket.socket) -> None:
        half = self._half_open.get(sock)
        if half is None:
            return  # dropped earlier in this round
        handshake = half.handshake
        try:
            if self._gate and handshake.wanted == HELLO_BYTES and sock.recv(1, socket.MSG_PEEK) == b"\0":
                self._pass_on(sock, self._gate)
                return
            data = sock.recv(handshake.wanted)
            reply = handshake.feed(data) if data else b""
            if handshake.hello is not None and _has_left(sock):
                handshake.hello, data = None, b""
            elif reply and sock.send(reply) != len(reply):
                handshake.error = "it does not read"
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""  # the client has gone
        except OSError as error:
            data, handshake.error = b"", str(error.strerror)
        if handshake.hello is not None:
            self._admit(sock, handshake.hello)
        elif handshake.error or not data:  # a client of this job that closed has ended or timed out: no log message
            self._drop(sock, handshake.error or ("" if handshake.ours else "it closed the connection before its identification"))

    def _admit(self, sock: socket.socket, hello: Hello) -> None:
        self._forget(sock)
        self._short_last = 0.0
        try:
            sock.setblocking(True)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._callback(sock, hello)
        except Exception:
            log().exception("%s: an admitted connection (%s, rank %d) could not be used", self._thread.name,
                           hello.purpose.value, hello.sender)
            sock.close()

    def _pass_on(self, sock: socket.socket, gate: Callable[[socket.socket], None]) -> None:
        self._forget(sock)  # before the callback, which may close it
        try:
            gate(sock)
        except (AuthFailed, OSError) as error:
            self._complain(sock, str(error))
            sock.close()

    def _forget(self, sock: socket.socket) -> None:
        del self._half_open[sock]
        self._selector.unregister(sock)

    def _drop(self, sock: socket.socket, reason: str) -> None:
        self._forget(sock)
        if reason:
            self._complain(sock, reason)
        sock.close()

    def _expire(self) -> None:
        now = time.monotonic()
        for sock in [s for s, half in self._half_open.items() if half.end <= now]:
            self._drop(sock, f"it did not identify itself within {self._seconds:g} s")
        if self._paused_until and self._paused_until <= now:
            self._paused_until = 0.0
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ, listener)

    def _complain(self, sock: socket.socket, reason: str) -> None:
        self._complaints += 1
        now = time.monotonic()
        if now >= self._next_complaint:
            self._next_complaint = now + _LOG_EVERY
            log().warning("%s: a connection from %s was refused: %s (%d so far; logged at most once a minute)",
                         self._thread.name, _peer(sock), reason, self._complaints)

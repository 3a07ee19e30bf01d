"""Gate: accepts clients of torch.distributed's TCPStore in our store, whose server implements their protocol
(native/store).

That has no authentication: on loopback a client must run under our user, from elsewhere it is let in only where
ARRAYCOMM_TORCH_STORE=1 asks for that. It has no errors either: a request that cannot be carried out ends the connection, and
so does one that is not whole after 60 s, or with which such requests and unread answers hold more than 128 MiB in all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

from arraycomm._engine import store_admit

from ...base import settings
from ...base.errors import AuthFailed
from ...base.log import log
from ...base.printable import printable
from ...base.typed import TYPE_CHECKING
from ..address import is_loopback
from ..auth import check_user
from .server import keep_alive

if TYPE_CHECKING:
    from arraycomm._engine import StoreServer

_LOG_EVERY = 60.0  # s: rate limit of log messages


class Gate:
    """The gate of one server. checked: the user ids of clients on loopback have been checked."""

    def __init__(self, server: StoreServer, *, checked: bool) -> None:
        self._server, self._checked = server, checked
        # The server writes a line for each client that it disconnects, and never blocks on this socket.
        self._told, self._complaints = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._count, self._next_time = 0, 0.0
        self._pid = os.getpid()

    def fileno(self) -> int:
        """The descriptor that becomes readable when tell() has something to log."""
        return self._told

    def offer(self, sock: socket.socket) -> None:
        """Takes ownership of the socket, or raises AuthFailed. Called by one thread at a time."""
        if is_loopback(sock.getpeername()[0]):
            if not self._checked:
                check_user(sock, None)
        elif not settings.get_flag("ARRAYCOMM_TORCH_STORE"):
            raise AuthFailed("it speaks the protocol of torch's store, which has no authentication and is served on loopback "
                             "only, unless ARRAYCOMM_TORCH_STORE=1 accepts the risk")
        keep_alive(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        store_admit(self._server, sock.fileno(), self._complaints)
        sock.detach()

    def tell(self) -> None:
        """Logs why clients were disconnected."""
        with contextlib.suppress(BlockingIOError):
            for line in os.read(self._told, 1 << 16).decode(errors="backslashreplace").split("\n")[:-1]:
                self._count += 1
                now = time.monotonic()
                if now >= self._next_time:
                    self._next_time = now + _LOG_EVERY
                    log().warning("a client of torch's kind is disconnected, as its protocol has no errors: %s (%d so far; this "
                                  "is said once a minute)", printable(line), self._count)

    def close(self) -> None:
        """After the server has ended."""
        if self._pid == os.getpid():
            self.tell()
        os.close(self._told)
        os.close(self._complaints)

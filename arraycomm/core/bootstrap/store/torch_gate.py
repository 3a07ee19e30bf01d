"""Gate: lets clients of torch.distributed's TCPStore into a store of ours, whose server speaks their protocol
(native/store/torch.c).

That has no authentication: on loopback a client must run under our user, from elsewhere it is let in only where
ARRAYCOMM_TORCH_STORE=1 asks for that. It has no errors either: a request that cannot be carried out ends the connection, and
so does one that is not whole after 60 s, or with which such requests hold more than 64 MiB in all.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

from ...base import settings, threads
from ...base.errors import AuthFailed
from ...base.log import log
from ...base.printable import printable
from ..address import is_loopback
from ..auth import check_user
from .server import keep_alive

_LOG_EVERY = 60.0  # s between two complaints
_END = b"\0\n"  # no complaint


class Gate:
    """Takes connections that `offer` is given. `admit` hands one to the server, with the number of workers it waits for and a
    pipe for complaints; the server sets it.
    """

    admit: Callable[[socket.socket, int, int], None]
    checked = False  # whether the server has looked at the users of its clients on loopback

    def __init__(self, world_size: int | None) -> None:
        self._world_size = world_size or 0
        self._complaints = -1  # as the thread, from the first connection on
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def offer(self, sock: socket.socket) -> None:
        """Any one thread. Owns the socket from here on, or raises AuthFailed."""
        if is_loopback(sock.getpeername()[0]):
            if not self.checked:
                check_user(sock, None)
        elif not settings.get_flag("ARRAYCOMM_TORCH_STORE"):
            raise AuthFailed("it speaks the protocol of torch's store, which has no authentication and is served on loopback "
                             "only, unless ARRAYCOMM_TORCH_STORE=1 accepts the risk")
        keep_alive(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._thread is None:
            self._start()
        self.admit(sock, self._world_size, self._complaints)

    def _start(self) -> None:
        told, self._complaints = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._complaints, False)  # the server never waits for who reads it
        thread = threading.Thread(target=_listen, args=(told,), name="arraycomm-store-gate", daemon=True)
        try:
            threads.start(thread)
        except BaseException:
            os.close(told)
            os.close(self._complaints)
            raise
        self._thread = thread

    def close(self) -> None:
        """After the server has ended. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._pid == os.getpid():
                os.set_blocking(self._complaints, True)
                os.write(self._complaints, _END)  # a child made by fork may keep the pipe open
                thread.join()
            os.close(self._complaints)


def _listen(told: int) -> None:
    count, next_time = 0, 0.0
    with open(told, encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
        for line in iter(lines.readline, _END.decode()):
            count += 1
            now = time.monotonic()
            if now >= next_time:
                next_time = now + _LOG_EVERY
                log().warning("a client of torch's kind is disconnected, as its protocol has no errors: %s (%d so far; this is "
                              "said once a minute)", printable(line.rstrip("\n")), count)

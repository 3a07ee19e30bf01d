"""The server behind TCPStore: a thread in C (native/store/server.c) serves all clients, another (auth.Acceptor) accepts
them.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from arraycomm._engine import store_admit, store_end, store_serve

from ...base import kernel
from ...base.errors import ResourceError
from ..auth import Acceptor, Hello, Purpose


class StoreServer:
    """Serves a table on listening sockets, which it owns. A dead client's pending request is dropped.

    torch: it serves clients of torch.distributed's TCPStore, too."""

    def __init__(self, listeners: Sequence[socket.socket], secret: bytes | None, job: str, *, torch: bool = False) -> None:
        try:
            self._server = store_serve()
        except OSError as error:
            advice = kernel.advice(error.errno, "see `ulimit -n`, `ulimit -u` and `ulimit -v`")
            raise ResourceError(f"cannot start the store's thread: {error.strerror}; {advice}") from error
        self._closed = False
        self._gate = None
        try:
            if torch:
                from .torch_gate import Gate  # lazy: rarely used

                self._gate = Gate(self._server, checked=not secret)
            self._acceptor = Acceptor(listeners, secret, job, self._admit, check=_welcome, name="store-acceptor", gate=self._gate)
        except BaseException:
            self._end(0.0)
            raise

    def close(self, linger: float = 0.0) -> None:
        """Stops accepting, waits up to `linger` seconds for the clients to disconnect, then closes all. Idempotent."""
        if not self._closed:
            self._acceptor.close()
            self._end(linger)

    def _end(self, linger: float) -> None:
        self._closed = True
        store_end(self._server, linger)
        if self._gate:
            self._gate.close()

    def _admit(self, sock: socket.socket, _: Hello) -> None:
        """Called in the acceptor's thread, which ends before the server."""
        if sock.family != socket.AF_UNIX:
            keep_alive(sock)
        store_admit(self._server, sock.fileno())
        sock.detach()


def _welcome(hello: Hello) -> str | None:
    return None if hello.purpose is Purpose.STORE else f"this is a store, not a port for {hello.purpose.value}"


def keep_alive(sock: socket.socket) -> None:
    """TCP keepalive: a host that fails without a FIN or RST is detected within about 6 s."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)

"""Lines: the connections of a TCPStore, on which requests are native calls (native/store/line.c)."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from arraycomm._engine import store_line, store_post, store_request

from ...base.typed import TYPE_CHECKING, Any
from . import connections
from .connections import GRACE, Connections
from .table import CLOSED

if TYPE_CHECKING:
    from arraycomm._engine import StoreLine


class Line(socket.socket):
    """A connected, admitted socket with its native end: beside a Unix socket two pipes, where the server takes them."""

    __slots__ = ("native",)

    def __init__(self, sock: socket.socket) -> None:
        """Takes the socket over. Raises OSError."""
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        try:
            self.native: StoreLine | None = store_line(self.fileno(), GRACE if self.family == socket.AF_UNIX else 0)
        except BaseException:
            super().close()
            raise

    def close(self) -> None:
        super().close()
        self.native = None


class Lines(Connections):
    """`attempt` makes a Line."""

    def post(self, key: object, value: object) -> bool:
        """Sends a short SET at once and without an answer. False where that does not go: then request() does it, or complains."""
        if self._forks != connections._forks:
            return False
        try:
            line: Any = self._idle.pop()
        except IndexError:
            return False
        sent = store_post(line.native, key, value)
        self._idle.append(line)
        if self._closed:  # meanwhile
            connections._close(self._idle, self._aside, None)
        return sent

    def request(self, code: int, strings: Sequence[bytes], milliseconds: int) -> tuple[int, list[bytes]]:
        """The code and the strings of the answer. As `use`, without the costs of a context."""
        line: Any = self._take()
        try:
            answer = store_request(line.native, code, strings, milliseconds, GRACE)
            if answer[2]:
                self._heard_goodbye(answer[0])
        except BaseException as error:
            self._failed(line, error)
            raise
        self._give_back(line)
        return answer[0], answer[1]

    def _heard_goodbye(self, code: int) -> None:
        """With an answer, or instead of it."""
        self.said_goodbye = True
        if code == CLOSED:
            raise ConnectionResetError("it was closed there")

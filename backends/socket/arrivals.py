"""Admitted connections whose group is not open here yet: kept for a while, and not without limit."""

from __future__ import annotations

import socket
import time

from arraycomm.core.base.record import Record
from arraycomm.core.bootstrap.auth import Hello, Purpose

MOST = 1024


class _Arrival(Record):
    sock: socket.socket
    hello: Hello
    end: float


class Arrivals:
    """Not safe to use from several threads without the owner's lock."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds that a connection waits for its group."""
        self._patience = patience
        self._kept: list[_Arrival] = []  # oldest first

    def keep(self, sock: socket.socket, hello: Hello) -> None:
        """Takes the socket. The oldest is closed where there are too many."""
        now = time.monotonic()
        while self._kept and (self._kept[0].end <= now or len(self._kept) >= MOST):
            self._kept.pop(0).sock.close()
        self._kept.append(_Arrival(sock, hello, now + self._patience))

    def take(self, group: int, purpose: Purpose) -> list[tuple[socket.socket, Hello]]:
        """Those for a group; the caller owns the sockets."""
        fits = [a for a in self._kept if a.hello.group == group and a.hello.purpose is purpose]
        self._kept = [a for a in self._kept if a not in fits]
        return [(arrival.sock, arrival.hello) for arrival in fits]

    def close(self) -> None:
        while self._kept:
            self._kept.pop().sock.close()

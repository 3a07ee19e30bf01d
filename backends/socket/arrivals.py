"""Accepted connections whose group is not open here yet: kept for a limited time and in a limited number."""

from __future__ import annotations

import socket
import time
from typing import NamedTuple

from arraycomm.core.bootstrap.auth import Hello, Purpose

MOST = 1024


class _Arrival(NamedTuple):
    sock: socket.socket
    hello: Hello
    end: float


class Arrivals:
    """Not thread-safe: the caller holds the owner's lock."""

    def __init__(self, patience: float) -> None:
        """`patience`: timeout in seconds for a connection to wait for its group."""
        self._patience = patience
        self._kept: list[_Arrival] = []  # oldest first

    def keep(self, sock: socket.socket, hello: Hello) -> None:
        """Takes ownership of the socket. Beyond the limit the oldest one is closed."""
        now = time.monotonic()
        while self._kept and (self._kept[0].end <= now or len(self._kept) >= MOST):
            self._kept.pop(0).sock.close()
        self._kept.append(_Arrival(sock, hello, now + self._patience))

    def take(self, group: int, purpose: Purpose) -> list[tuple[socket.socket, Hello]]:
        """Removes and returns the connections of a group; the caller owns the sockets."""
        fits = [a for a in self._kept if a.hello.group == group and a.hello.purpose is purpose]
        self._kept = [a for a in self._kept if a not in fits]
        return [(arrival.sock, arrival.hello) for arrival in fits]

    def close(self) -> None:
        while self._kept:
            self._kept.pop().sock.close()

"""A TCP connection, also over a network that loses packets."""

from __future__ import annotations

import errno
import os
import select
import socket

from ..base.deadline import Deadline
from .address import numeric

_BESIDE = 0.5  # s after which another attempt starts in parallel


def connect_tcp(address: str, port: int, remaining: Deadline, source: str | None = None) -> socket.socket:
    """A connected, blocking socket to a numeric address; `source` as for auth.connect.

    Where a connection's first packet or the answer to it is lost, the kernel repeats it after 1, 3 and 7 s only. So
    another attempt starts in parallel every half second, as RFC 8305 does among several addresses. The first connection
    that succeeds is used, and the others are closed.

    Raises OSError for the first refusal or failure of any attempt, TimeoutError when `remaining` has expired.
    """
    family, target = socket.AF_INET6 if ":" in address else socket.AF_INET, numeric(address, port)
    attempts: dict[int, socket.socket] = {}
    poll = select.poll()
    try:
        while remaining.left > 0:
            sock = socket.socket(family)
            attempts[sock.fileno()] = sock
            _begin(sock, target, source)
            poll.register(sock, select.POLLOUT)
            with remaining.slice(_BESIDE) as seconds:
                answered = poll.poll(max(seconds * 1000, 1))
            for number, _ in answered:
                _check(attempts[number].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                attempts[number].setblocking(True)
                return attempts.pop(number)
    finally:
        for sock in attempts.values():
            sock.close()
    raise TimeoutError("timed out")


def _begin(sock: socket.socket, target: object, source: str | None) -> None:
    if source:
        sock.bind(numeric(source, 0))
    sock.setblocking(False)
    number = sock.connect_ex(target)  # type: ignore[arg-type]
    if number != errno.EINPROGRESS:
        _check(number)


def _check(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))

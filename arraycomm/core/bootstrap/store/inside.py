"""A fast path to a store on the same host: a Unix socket in addition to each listening socket on loopback.

Its name is abstract: it belongs to the network namespace, like the port, and needs no cleanup. Any user may bind such a
name first; so both ends check the peer's user, authenticate as over TCP, and fall back to TCP if that fails.
"""

from __future__ import annotations

import socket
import struct

from ...base.errors import AuthFailed
from ..address import is_loopback
from ..auth import Hello, client_handshake

_BACKLOG = 1024
_FULL = struct.pack("@2l", 0, 200_000)  # s, us: how long a full backlog is waited at; a stranger's never gets shorter


def _name(address: str, port: int) -> str:
    return f"\0arraycomm store {address} {port}"


def listen(address: str, port: int) -> socket.socket | None:
    """None if the address is not loopback, or the name is in use."""
    if not is_loopback(address):
        return None
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(_name(address, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        return None
    return sock


def connect(address: str, port: int, secret: bytes | None, hello: Hello, *, deadline: float) -> socket.socket | None:
    """A connected, authenticated, blocking socket; None if there is no such server."""
    if not is_loopback(address):
        return None
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _FULL)
        sock.connect(_name(address, port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(len(_FULL)))  # none
        client_handshake(sock, secret, hello, deadline=deadline)
    except (OSError, AuthFailed):
        sock.close()
        return None
    return sock

"""The way to a store on the same host: a Unix socket beside each listening socket on loopback.

Its name is abstract: it belongs to the network namespace, as the port does, and leaves nothing behind. Anybody may take
such a name first; so both ends look at the other's user, authenticate as over TCP, and go on over TCP where that fails.
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
    """None where that is not loopback, or somebody has the name."""
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
    """A connected, authenticated, blocking socket; None where there is no such server."""
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

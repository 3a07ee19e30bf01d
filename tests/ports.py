"""A place for a server of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])

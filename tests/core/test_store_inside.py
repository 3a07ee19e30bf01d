"""The Unix socket of a store on the same host."""

from __future__ import annotations

import contextlib
import socket
from datetime import timedelta

import pytest

from arraycomm.core.bootstrap.auth import Hello, Purpose
from arraycomm.core.bootstrap.store import TCPStore, inside

from ..ports import free_port


def test_unix_socket_on_loopback_and_without_it() -> None:
    port = free_port()
    store = TCPStore("127.0.0.1", port, is_master=True)
    assert store._connections._idle[0].family == socket.AF_UNIX
    store.close()
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(inside._name("127.0.0.1", port))
        store = TCPStore("127.0.0.1", port, is_master=True)
        assert store._connections._idle[0].family == socket.AF_INET
        assert store.add("n", 1) == 1
        store.close()


@pytest.mark.parametrize("backlog", ["free", "full"])
def test_somebody_else_listens_under_the_stores_name(backlog: str) -> None:
    """It never accepts: nobody waits for it, and the store is reached over TCP."""
    port = free_port()
    with socket.socket(socket.AF_UNIX) as taken, contextlib.ExitStack() as opened:
        taken.bind(inside._name("127.0.0.1", port))
        taken.listen(0)
        while backlog == "full":
            waiting = opened.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            if waiting.connect_ex(taken.getsockname()):
                break
        assert (inside.connect("127.0.0.1", port, b"s", Hello("", Purpose.STORE), deadline=0.2)) is None
        store = TCPStore("127.0.0.1", port, is_master=True, timeout=timedelta(seconds=20))
        assert store._connections._idle[0].family == socket.AF_INET
        assert store.add("n", 1) == 1
        store.close()


def test_a_connection_inside_waits_in_sending_as_long_as_any() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, secret=b"s")
    sock = inside.connect("127.0.0.1", store.port, b"s", Hello("", Purpose.STORE), deadline=5)
    assert sock is not None and sock.gettimeout() is None
    assert not any(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16))
    sock.close()
    store.close()

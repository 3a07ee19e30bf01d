from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable

import pytest

from arraycomm.core.bootstrap import loopback

WAYS = pytest.mark.parametrize("way", [loopback._by_netlink, loopback._by_table])
Way = Callable[[socket.socket], "int | None"]


def _listener(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    sock.bind((address, 0))
    sock.listen()
    return sock


@WAYS
@pytest.mark.parametrize(("listens", "connects"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("127.0.0.1", "::ffff:127.0.0.1")])
def test_user_of_the_other_end(way: Way, listens: str, connects: str) -> None:
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(_listener(listens))
        client = opened.enter_context(socket.create_connection((connects, listener.getsockname()[1])))
        server = opened.enter_context(listener.accept()[0])
        assert way(server) == loopback.user(server) == loopback.user(client) == os.geteuid()


def test_who_has_gone_has_no_user() -> None:
    with _listener("127.0.0.1") as listener:
        client = socket.create_connection(listener.getsockname())
        with listener.accept()[0] as server:
            client.close()
            assert select.select([server], [], [], 10)[0]
            with pytest.raises(ConnectionAbortedError):
                loopback.user(server)


@WAYS
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_told(way: Way) -> None:
    with _listener("127.0.0.1") as listener:
        listener.settimeout(20)
        said, say = os.pipe()
        child = os.fork()
        if not child:  # it cannot start an interpreter: that may lie where no other user may look
            os.setuid(65534)
            os.close(say)
            connected = socket.create_connection(listener.getsockname())
            os.read(said, 1)  # until the parent's end is closed
            connected.close()
            os._exit(0)
        try:
            with listener.accept()[0] as server:
                assert way(server) == 65534
        finally:
            os.close(say)
            os.close(said)
            os.waitpid(child, 0)

"""Connections where packets are lost: a listener whose queue is full drops them too."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from arraycomm.core.base.deadline import Deadline
from arraycomm.core.bootstrap.connect import connect_tcp

LIMIT = 30.0  # s
_ASKING = "02"  # a connection's state in /proc/net/tcp: its first packet was sent, and not answered


def _asking(port: int) -> int:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == _ASKING for row in rows)


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """A listener that answers nobody, until somebody accepts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port, end = listener.getsockname()[1], time.monotonic() + LIMIT
        while not _asking(port):
            assert time.monotonic() < end
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield listener


def test_another_attempt_begins_beside_the_first(full: socket.socket) -> None:
    port = full.getsockname()[1]
    before, made = _asking(port), []
    caller = threading.Thread(target=lambda: made.append(connect_tcp("127.0.0.1", port, Deadline(LIMIT))))
    caller.start()
    end = time.monotonic() + LIMIT
    while _asking(port) < before + 2:
        assert time.monotonic() < end and caller.is_alive(), "no attempt began beside the first"
        time.sleep(0.01)
    accepted: list[socket.socket] = []
    full.settimeout(0.1)
    while not made or made[0].getsockname() not in [sock.getpeername() for sock in accepted]:
        assert time.monotonic() < end
        with contextlib.suppress(TimeoutError):
            accepted.append(full.accept()[0])
    caller.join()
    assert made[0].getblocking()
    made[0].sendall(b"x")
    other = next(sock for sock in accepted if sock.getpeername() == made[0].getsockname())
    assert other.recv(1) == b"x"
    for sock in [*accepted, *made]:
        sock.close()


def test_nobody_answers(full: socket.socket) -> None:
    port = full.getsockname()[1]
    before = _asking(port)
    with pytest.raises(TimeoutError, match="timed out"):
        connect_tcp("127.0.0.1", port, Deadline(0.7))
    assert _asking(port) <= before, "attempts were left behind"


def test_a_refusal_counts_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError) as caught:
            connect_tcp("127.0.0.1", unused.getsockname()[1], Deadline(LIMIT))
    assert caught.value.errno == errno.ECONNREFUSED


def test_source() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with connect_tcp("127.0.0.1", port, Deadline(LIMIT), "127.0.0.3") as sock:
            assert sock.getsockname()[0] == "127.0.0.3"


def test_six() -> None:
    if not socket.has_ipv6:
        pytest.skip("this system has no IPv6")
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"::1 is not there: {error.strerror}")
    with listener, connect_tcp("::1", listener.getsockname()[1], Deadline(LIMIT)) as sock:
        assert sock.getpeername()[0] == "::1"

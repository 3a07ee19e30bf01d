from __future__ import annotations

import socket

import pytest

from arraycomm.backends.socket import arrivals
from arraycomm.core.bootstrap.auth import Hello, Purpose


def test_arrivals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MOST", 3)
    kept = arrivals.Arrivals(patience=100.0)
    socks = [socket.socket() for _ in range(5)]
    for number, sock in enumerate(socks):
        kept.keep(sock, Hello("job", Purpose.DATA, group=number % 2))
    assert [sock.fileno() < 0 for sock in socks] == [True, True, False, False, False]
    assert [sock for sock, _ in kept.take(0, Purpose.DATA)] == [socks[2], socks[4]]
    assert kept.take(1, Purpose.SEGMENT) == []
    kept.close()
    assert socks[3].fileno() < 0
    socks[2].close()
    socks[4].close()


def test_arrivals_expire() -> None:
    kept = arrivals.Arrivals(patience=0.0)
    first, second = socket.socket(), socket.socket()
    kept.keep(first, Hello("job", Purpose.DATA))
    kept.keep(second, Hello("job", Purpose.DATA))
    assert first.fileno() < 0
    kept.close()

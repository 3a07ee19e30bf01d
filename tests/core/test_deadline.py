"""Who was suspended while it connected does not blame the other side, which may have been suspended with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from arraycomm.core.base.deadline import Deadline
from arraycomm.core.bootstrap import auth
from arraycomm.core.bootstrap.handshake import ServerHandshake

DEADLINE = 0.6  # s of the client
SECRET = bytes(range(32))
LIMIT = 30.0  # s

_CLIENT = f"""
import os, signal, socket, sys
from arraycomm.core.bootstrap import auth
real = socket.getaddrinfo
def stopped_first(*arguments, **options):
    socket.getaddrinfo = real
    os.kill(os.getpid(), signal.SIGSTOP)
    return real(*arguments, **options)
if sys.argv[2] == "connect":
    socket.getaddrinfo = stopped_first
hello = auth.Hello("job", auth.Purpose.DATA)
auth.connect("127.0.0.1", int(sys.argv[1]), bytes(range(32)), hello, deadline={DEADLINE}).close()
"""


@contextmanager
def _client(listener: socket.socket, when: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _CLIENT, str(listener.getsockname()[1]), when]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
        try:
            yield client
        finally:
            client.kill()


def _stop_for(client: subprocess.Popen[str], seconds: float) -> None:
    assert os.WIFSTOPPED(os.waitpid(client.pid, os.WUNTRACED)[1])
    time.sleep(seconds)
    client.send_signal(signal.SIGCONT)


def _serve(sock: socket.socket, handshake: ServerHandshake) -> None:
    while handshake.hello is None and handshake.error is None:
        sock.sendall(handshake.feed(sock.recv(handshake.wanted)))
    assert handshake.error is None


def test_suspended_before_the_first_attempt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, _client(listener, "connect") as client:
        _stop_for(client, 1.5 * DEADLINE)
        listener.settimeout(LIMIT)
        sock, _ = listener.accept()
        with sock:
            _serve(sock, ServerHandshake(SECRET, "job", where=auth.where(sock.getsockname())))
            assert client.wait(LIMIT) == 0, client.stderr and client.stderr.read()


def test_suspended_while_the_other_side_was_too() -> None:
    """It goes on before the other side, which answers within the client's seconds, but after its deadline."""
    with socket.create_server(("127.0.0.1", 0)) as listener, _client(listener, "handshake") as client:
        listener.settimeout(LIMIT)
        sock, _ = listener.accept()
        with sock:
            handshake = ServerHandshake(SECRET, "job", where=auth.where(sock.getsockname()))
            sock.settimeout(LIMIT)
            asked = sock.recv(handshake.wanted)
            client.send_signal(signal.SIGSTOP)
            _stop_for(client, 1.5 * DEADLINE)
            time.sleep(DEADLINE / 4)
            sock.sendall(handshake.feed(asked))
            _serve(sock, handshake)
            assert client.wait(LIMIT) == 0, client.stderr and client.stderr.read()


def test_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    remaining = Deadline(0.25)
    with remaining.slice() as seconds:
        assert seconds == pytest.approx(0.1)
        now += 0.04
    assert remaining.left == pytest.approx(0.21)
    with remaining.slice(0.05) as seconds:
        assert seconds == 0.05
        now += 3600.0
    assert remaining.left == pytest.approx(0.16)
    with pytest.raises(KeyError), remaining.slice(10.0) as seconds:
        assert seconds == pytest.approx(0.16)
        now += 0.2
        raise KeyError
    assert remaining.left == 0
    with remaining.slice() as seconds:
        assert seconds == 0

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from arraycomm.backends.socket import local, outgoing, peers
from arraycomm.core.base import private
from arraycomm.core.base.errors import DistNetworkError
from arraycomm.core.bootstrap.auth import Acceptor, Hello, Purpose

HELLO = Hello("job", Purpose.CONTROL, 0, 1)


@pytest.fixture
def listener() -> Iterator[str]:
    """The path of sockets that are served until the test ends."""
    socks, path = local.listen()
    acceptor = Acceptor(socks, b"secret", "job", lambda sock, hello: sock.close())
    yield path
    acceptor.close()
    local.remove(path)
    local.remove(path)


def reach(path: str) -> None:
    local.connect(path, b"secret", HELLO, deadline=20).close()


def refuse(monkeypatch: pytest.MonkeyPatch, allowed: Any) -> None:
    """Binding of Unix sockets to other addresses."""
    real = socket.socket.bind

    class Refusing(socket.socket):
        def bind(self, address: Any) -> None:
            if self.family == socket.AF_UNIX and not allowed(address):
                raise PermissionError
            real(self, address)

    monkeypatch.setattr(socket, "socket", Refusing)


def test_unix_listener_is_private(short: Path, listener: str) -> None:
    directory = Path(listener).parent
    assert directory.parent == short
    assert directory.stat().st_mode & 0o777 == 0o700
    assert stat.S_IMODE(os.stat(listener).st_mode) == 0o600
    reach(listener)


@pytest.mark.parametrize("umask", [0o177, 0o777])
def test_any_umask(short: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        socks, path = local.listen()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(os.stat(name).st_mode) for name in (path, os.path.dirname(path))] == [0o600, 0o700]
    for sock in socks:
        sock.close()


def test_what_dead_processes_of_this_host_left_is_swept(short: Path, listener: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    directory, name = Path(listener).parent, Path(listener).name
    left = directory / f"{name.partition('-')[0]}-{dead.pid}-aa"
    monkeypatch.setenv("ARRAYCOMM_HOSTID", "another")
    others = [directory / f"{mark}-{dead.pid}-aa" for mark in (local._host(), "4026531836", "0")]
    for path in (left, *others):
        path.touch()
    local.sweep(listener)
    assert sorted(os.listdir(directory)) == sorted([name, *(path.name for path in others)])


def test_who_does_not_know_its_host_sweeps_nothing(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_host", lambda: "")
    socks, path = local.listen()
    (Path(path).parent / "-999999999-aa").touch()
    local.sweep(path)
    assert len(os.listdir(Path(path).parent)) == 2
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("removed", ["socket", "directory"])
def test_who_is_cleaned_away_is_reached_all_the_same(short: Path, listener: str, removed: str) -> None:
    os.unlink(listener)
    if removed == "directory":
        os.rmdir(os.path.dirname(listener))
    reach(listener)
    local.sweep(listener)


def test_a_file_system_without_sockets_is_passed_over(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, lambda address: not address.startswith(str(short)))
    socks, path = local.listen()
    assert len(socks) == 2 and os.path.isabs(path) and not path.startswith(str(short))
    local.remove(path)
    for sock in socks:
        sock.close()


def test_without_a_directory_there_is_the_abstract_name(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(private, "_make", lambda directory: os.stat("/proc/none"))
    path = request.getfixturevalue("listener")
    assert path.startswith("@/")
    reach(path)
    local.sweep(path)


def test_without_an_abstract_name_there_is_the_path(short: Path, monkeypatch: pytest.MonkeyPatch,
                                                   request: pytest.FixtureRequest) -> None:
    refuse(monkeypatch, lambda address: not address.startswith("\0"))
    path = request.getfixturevalue("listener")
    reach(path)
    mine = peers.this_process([("127.0.0.1", 1)], path)
    ways = outgoing.Outgoing(0, peers.Peers([peers.encode(mine)] * 2, mine), "job", b"secret", 5)
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
    with pytest.raises(DistNetworkError, match="its process has ended"):
        ways.connect(1, Purpose.CONTROL)
    os.unlink(path)
    with pytest.raises(DistNetworkError, match="its socket was removed"):
        ways.connect(1, Purpose.CONTROL)


def test_who_can_have_neither_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, lambda address: False)
    assert local.listen() == ([], "")
    mine = peers.this_process([("127.0.0.1", 1)], "")
    assert mine.host != peers.this_process([("127.0.0.1", 1)], "").host


def test_a_busy_peer_is_called_again(tmp_path: Path) -> None:
    """Its backlog is full, and then it closes connections without a verdict, as one does whose table of strangers is full."""
    path = str(tmp_path / "socket")
    listener, waiting = socket.socket(socket.AF_UNIX), []
    listener.bind(path)
    listener.listen(0)
    while True:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        waiting.append(sock)
        if sock.connect_ex(path):
            break

    def serve() -> Acceptor:
        for _ in range(len(waiting) + 1):  # those that wait but for the one that was refused, and the caller's first two
            listener.accept()[0].close()
        return Acceptor([listener], b"secret", "job", lambda sock, hello: sock.close())

    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        reach(path)
        served.result(20).close()
    for sock in waiting:
        sock.close()


def test_a_peer_that_never_accepts(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as opened:
        listener.bind(path)
        listener.listen(0)
        while True:
            sock = opened.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            if sock.connect_ex(path):
                break
        with pytest.raises(TimeoutError, match="does not accept connections"):
            local.connect(path, b"secret", HELLO, deadline=0.2)

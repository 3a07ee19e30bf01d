from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arraycomm.backends.socket import local


def test_unix_listener_is_private_and_swept(short: Path) -> None:
    sock, path = local.listen()
    directory = Path(path).parent
    assert directory.parent == short
    assert directory.stat().st_mode & 0o777 == 0o700
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    left, foreign = directory / f"{namespace}-{dead.pid}-aa", directory / f"{namespace + 1}-{dead.pid}-aa"
    left.touch()
    foreign.touch()
    local.sweep(str(directory))
    assert sorted(os.listdir(directory)) == sorted([Path(path).name, foreign.name])
    sock.close()
    local.remove(path)
    local.remove(path)


def test_open_directory_is_not_used(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short / f"arraycomm-{os.geteuid()}").mkdir(mode=0o755)
    monkeypatch.setattr("tempfile.tempdir", str(short / ("x" * 100)))  # too long for a socket's path
    sock, path = local.listen()
    assert path.startswith("/tmp/arraycomm-")
    sock.close()
    local.remove(path)

"""Folders of launchers: what is removed, and what is not."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from arraycomm.backends.mpi import folder

SHARED = Path("/dev/shm")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def _dead(note: bytes = b"") -> Path:
    """What a launcher that was killed has left."""
    made = folder.Folder()
    os.close(made._lock)
    (Path(made.path) / "memory-0").write_bytes(note)
    return Path(made.path)


def test_what_is_left_is_removed_once_its_launcher_is_gone() -> None:
    memory = SHARED / f"mpich_shm_test_{os.getpid()}"
    memory.touch()
    broken = b"12\n\xff\nx " + os.fsencode(memory.name)  # by a full disk, say
    living, dead = folder.Folder(), _dead(broken + f"\n{memory.stat().st_ino} {memory.name}\n".encode())
    folder.Folder().close()
    assert not dead.exists() and not memory.exists() and Path(living.path).exists()
    living.close()
    assert not Path(living.path).exists()


def test_what_is_another_s_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file of that name, what is outside, another host's folder, and one of anybody's that has such a name."""
    memory, outside = SHARED / f"mpich_shm_test_{os.getpid()}", temporary / "mine"
    memory.touch()
    outside.touch()
    number = memory.stat().st_ino
    dead = _dead(f"{number + 1} {memory.name}\n{outside.stat().st_ino} ../..{outside}\n{number} ../shm/{memory.name}\n".encode())
    monkeypatch.setattr(folder.socket, "gethostname", lambda: "elsewhere")
    other = _dead()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    named, target = temporary / "arraycomm-mpi-results1", temporary / "target"
    for place in (named, target):
        place.mkdir()
        (place / "lock").touch()
    (temporary / "arraycomm-mpi-link").symlink_to(target)
    folder.Folder().close()
    assert not dead.exists() and all(path.exists() for path in (memory, outside, other, named / "lock", target / "lock"))
    memory.unlink()


def test_a_disk_without_locks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    made = folder.Folder()
    assert "cannot be locked" in caplog.text
    folder.Folder().close()
    assert Path(made.path).exists(), "the folder of a launcher that may live"
    made.close()
    assert not Path(made.path).exists()

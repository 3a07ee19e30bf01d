from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from arraycomm.core.base.errors import DistNetworkError
from arraycomm.core.base.private import private_directories, private_directory

NAME = f"arraycomm-{os.geteuid()}"


def test_made_private(tmp_path: Path) -> None:
    directory = private_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert directory == str(tmp_path / NAME) == private_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700


def test_unfit_ones_are_passed_over(tmp_path: Path) -> None:
    """A link, a file, a missing base, a relative one, a long path: none is used."""
    for name in ("fallback", "link", "file"):
        os.mkdir(tmp_path / name)
    os.symlink(tmp_path / "fallback", tmp_path / "link" / NAME)
    (tmp_path / "file" / NAME).touch()
    wanted = str(tmp_path / "fallback" / NAME)
    for base in ("link", "file", "missing", os.path.relpath(tmp_path)):
        given = base if base.startswith("..") else str(tmp_path / base)
        assert private_directory({"XDG_RUNTIME_DIR": given, "TMPDIR": str(tmp_path / "fallback")}) == wanted
    long = {"XDG_RUNTIME_DIR": str(tmp_path / ("x" * 200)), "TMPDIR": str(tmp_path / "fallback")}
    assert next(private_directories(long, longest=len(wanted))) == wanted


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o600, 0o000])
def test_ones_own_is_put_right(tmp_path: Path, mode: int) -> None:
    """As an odd umask, or a careless hand, has left it."""
    os.mkdir(tmp_path / NAME)
    os.chmod(tmp_path / NAME, mode)
    assert private_directory({"XDG_RUNTIME_DIR": str(tmp_path)}) == str(tmp_path / NAME)
    assert stat.S_IMODE(os.stat(tmp_path / NAME).st_mode) == 0o700


@pytest.mark.parametrize("umask", [0o177, 0o777, 0o000])
def test_any_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        directory = private_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700 and os.listdir(directory) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_full_and_read_only_ones_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    real, full = os.open, str(tmp_path / "full")

    def opened(path: str, *rest: Any) -> int:
        if str(path).startswith(full):
            raise OSError(code, os.strerror(code))
        return real(path, *rest)

    monkeypatch.setattr(os, "open", opened)
    os.mkdir(full)
    given = {"XDG_RUNTIME_DIR": full, "TMPDIR": str(tmp_path)}
    assert private_directory(given) == str(tmp_path / NAME)


def test_another_users_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir(tmp_path / "free")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    os.mkdir(tmp_path / "arraycomm-4242")  # of the user that runs the test
    assert str(tmp_path) not in {os.path.dirname(found) for found in private_directories({"TMPDIR": str(tmp_path)})}


def test_none_is_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "mkdir", lambda *_: os.stat("/proc/none"))
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(DistNetworkError, match="set TMPDIR"):
        private_directory({"TMPDIR": "/proc"})

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from arraycomm.core.errors import DistNetworkError
from arraycomm.core.private import private_directory

NAME = f"arraycomm-{os.geteuid()}"


def test_made_private(tmp_path: Path) -> None:
    directory = private_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert directory == str(tmp_path / NAME) == private_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700


def test_unfit_ones_are_passed_over(tmp_path: Path) -> None:
    """A directory that others can enter, a link, a missing base, a long path: none is used."""
    os.mkdir(tmp_path / "fallback")
    for name in ("open", "link"):
        os.mkdir(tmp_path / name)
    os.mkdir(tmp_path / "open" / NAME, 0o755)
    os.symlink(tmp_path / "fallback", tmp_path / "link" / NAME)
    wanted = str(tmp_path / "fallback" / NAME)
    for base in ("open", "link", "missing"):
        assert private_directory({"XDG_RUNTIME_DIR": str(tmp_path / base), "TMPDIR": str(tmp_path / "fallback")}) == wanted
    long = {"XDG_RUNTIME_DIR": str(tmp_path / ("x" * 200)), "TMPDIR": str(tmp_path / "fallback")}
    assert private_directory(long, longest=len(wanted)) == wanted


def test_none_is_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DistNetworkError, match="too long; set TMPDIR"):
        private_directory({}, longest=3)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(DistNetworkError, match="set TMPDIR"):
        os.makedirs("/tmp/arraycomm-4242", exist_ok=True)
        try:
            private_directory({"TMPDIR": "/proc"})
        finally:
            os.rmdir("/tmp/arraycomm-4242")

"""The command from the outside: it runs, and prints a row per case."""

from __future__ import annotations

import pytest

from arraycomm.bench.__main__ import main


def test_startup(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["startup", "--np", "1,2", "--repeats", "1", "--again", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[2:]] == ["1"] * 4 + ["2"] * 4
    assert all("init" in row or "close" in row for row in rows[2:])

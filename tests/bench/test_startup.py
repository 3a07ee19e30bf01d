"""The small commands, from the outside: they run, and print a row per case."""

from __future__ import annotations

import pytest

from arraycomm.bench import store
from arraycomm.bench.__main__ import main


def test_startup(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["startup", "--np", "1,2", "--repeats", "1", "--again", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[2:]] == ["1"] * 4 + ["2"] * 4
    assert all("init" in row or "close" in row for row in rows[2:])


def test_store(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_torch", lambda: None)  # which forbids to fork once its threads run
    assert main(["store", "--clients", "1,3", "--rounds", "1", "--seconds", "0.02"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == 2 * len(store.OPERATIONS)
    assert all(float(row.split()[-1]) > 0 for row in rows)

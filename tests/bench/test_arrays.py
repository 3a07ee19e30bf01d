from __future__ import annotations

import pytest

from arraycomm.bench import arrays
from arraycomm.bench.__main__ import main


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    assert arrays.main(["--np", "1", "--sizes", "8", "--rounds", "1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[:4] for line in lines] == [["1", "8", "B", form] for form in ("given", "new")]
    assert all(float(line[4]) > 0 for line in lines)


def test_what_is_not_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"torch"}
    monkeypatch.setattr(arrays, "find_spec", lambda name: None if name in missing else object())
    assert arrays._present() == ("jax",)
    assert "torch is skipped, because it is not installed: pip install torch" in capsys.readouterr().out
    missing.add("jax")
    assert main(["arrays"]) == 2
    told = capsys.readouterr().err
    assert "pip install torch or pip install jax" in told and "--framework" not in told


def test_what_others_take_more() -> None:
    row = arrays._row([[2.0, 2.0, 3.0, 1.0], [2.0, 2.5, 4.0, 1.0], [4.0, 4.0, 4.0, 6.0]])
    assert row.split() == ["2.00", "+0.00", "(+0.00", "to", "+0.50)", "+1.00", "(+0.00", "to", "+2.00)",
                           "-1.00", "(-1.00", "to", "+2.00)"]

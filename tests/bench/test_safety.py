from __future__ import annotations

import pytest

from arraycomm.bench import safety


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert safety.main(["--np", "2", "--transport", "shm", "--sizes", "8,1K", "--rounds", "1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[:4] for line in lines] == [["2", "shm", operation, size] for operation in ("all_reduce", "sendrecv")
                                            for size in ("8", "1024")]
    assert all(float(line[4]) > 0 for line in lines)


def test_ratios() -> None:
    row = safety._row([[2.0, 1.0, 4.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0, 2.0], [3.0, 1.0, 1.0, 1.0, 1.0]])
    assert row.split() == ["2.0", "2.00", "(1.00-3.00)", "1.00", "(0.50-3.00)", "1.00", "(1.00-3.00)"]

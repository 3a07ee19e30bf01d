from __future__ import annotations

import pytest

from arraycomm.bench import cliffs


def test_the_line_between_neighbours() -> None:
    straight = {8: 1.0, 16: 2.0, 24: 3.0, 64: 8.0}
    assert cliffs.off_the_line(straight) == pytest.approx({16: 1.0, 24: 1.0})
    step = {64: 1.0, 128: 1.0, 132: 2.0, 256: 2.0}
    assert cliffs.off_the_line(step)[132] == pytest.approx(2.0 / (1 + 4 / 128))
    assert cliffs.off_the_line({8: 1.0, 16: 2.0}) == {}


def test_sizes_have_neighbours_and_odd_ones() -> None:
    sizes = cliffs.default_sizes(4 << 20)
    assert sizes == sorted(set(sizes)) and sizes[0] == 7 and sizes[-1] == 4 << 20
    assert {13, 124, 128, 132, 100_003, 400_012, (3 << 20) + 4, (4 << 20) - 4} <= set(sizes)
    assert max(cliffs.default_sizes(100)) == 64


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cliffs.main(["--np", "2", "--ops", "all_reduce,scatter", "--sizes", "7,16,100,1000", "--rounds", "1",
                        "--above", "0"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [line[:4] for line in lines] == [["2", "shm", operation, size] for operation, sizes in
                                            (("all_reduce", ("16", "100")), ("scatter", ("16", "100"))) for size in sizes]


def test_an_unknown_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert cliffs.main(["--ops", "barrier"]) == 2
    assert "unknown operation 'barrier'" in capsys.readouterr().err

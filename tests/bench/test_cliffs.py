from __future__ import annotations

import pytest

from arraycomm.bench import cliffs


def test_the_line_between_neighbours() -> None:
    straight = {8: 1.0, 16: 2.0, 24: 3.0, 64: 8.0}
    assert cliffs.off_the_line(straight) == pytest.approx({16: 1.0, 24: 1.0})
    step = {64: 1.0, 128: 1.0, 132: 2.0, 256: 2.0}
    assert cliffs.off_the_line(step)[132] == pytest.approx(2.0 / (1 + 4 / 128))
    assert cliffs.off_the_line({8: 1.0, 16: 2.0}) == {}


def test_sizes_that_are_nearly_the_same() -> None:
    assert cliffs.steps({64: 1.0, 128: 9.0, 65_536: 2.0, 65_540: 5.0, 131_068: 6.0, 131_072: 4.0}) == {65_540: 2.5, 131_072: 1.5}
    step = {131_068: 2.0, 131_072: 4.0, 131_076: 4.0}  # the line goes through its middle
    assert cliffs.cliffs(step) == {131_072: 2.0, 131_076: 1.0}


def test_the_fastest_rounds_count_and_all_make_the_range() -> None:
    found = cliffs.judged({64: [1.0, 2.0, 1.0], 128: [2.0, 2.0, 4.0], 192: [3.0, 4.0, 3.0]})
    assert found == [(128, 1.0, pytest.approx(2 / 3), 2.0)]


def test_sizes_have_neighbours_and_odd_ones() -> None:
    sizes = cliffs.default_sizes(4 << 20)
    assert sizes == sorted(set(sizes)) and sizes[0] == 7 and sizes[-1] == 4 << 20
    assert {13, 124, 128, 132, 100_003, 400_012, (3 << 20) + 4, (4 << 20) - 4} <= set(sizes)
    assert max(cliffs.default_sizes(100)) == 64


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cliffs.main(["--np", "2", "--ops", "all_reduce,scatter", "--sizes", "7,16,100,1000", "--rounds", "1",
                        "--above", "0"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [line[:4] for line in lines[:4]] == [["2", "shm", operation, size] for operation, sizes in
                                                (("all_reduce", ("16", "100")), ("scatter", ("16", "100"))) for size in sizes]
    assert " ".join(lines[4]) == "| | shm, 2 ranks |" and [line[1] for line in lines[6:]] == ["all_reduce", "scatter"]


def test_sizes_without_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    assert cliffs.main(["--np", "2", "--ops", "broadcast", "--sizes", "64", "--rounds", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "| broadcast | - |"

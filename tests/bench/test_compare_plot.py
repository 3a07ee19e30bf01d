"""What the comparison draws."""

from __future__ import annotations

import pytest

from arraycomm.bench.compare_plot import _places, curves, write_plot
from arraycomm.bench.results import Cell, Timing


def cell(operation, size, ranks=2, **times):
    timings = {name.replace("_", "/"): Timing(((time, time),), 1, 0, time, time, time) for name, time in times.items()}
    return Cell(operation, ranks, size, "float32", timings)


def test_curves_go_by_size():
    found = curves([cell("broadcast", 16, ours_shm=2.0), cell("broadcast", 8, ours_shm=1.0, gloo=9.0)])
    assert found == {"ours/shm": [(8, 1.0), (16, 2.0)], "gloo": [(8, 9.0)]}


def test_every_number_of_ranks_begins_a_row():
    keys = [(2, "a"), (2, "b"), (2, "c"), (4, "a")]
    assert _places(keys, 2) == [(2, "a"), (2, "b"), (2, "c"), None, (4, "a"), None]


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_panel_for_each_operation(tmp_path, ending):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{ending}"
    cells = [cell("all_reduce", 8, ours_shm=1.0, gloo=9.0), cell("all_reduce", 64, ours_shm=1.0, gloo=9.0),
             cell("barrier", 0, ours_shm=1.0, gloo=9.0), cell("barrier", 0, ranks=4, gloo=9.0)]
    write_plot(str(path), cells, "a title")
    written = path.read_bytes()
    assert len(written) > 5000
    if ending == "svg":
        for text in (b"all_reduce, 2 ranks", b"barrier, 4 ranks", b"a title"):
            assert text in written

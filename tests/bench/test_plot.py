"""What sweep and comparison draw."""

from __future__ import annotations

import pytest

from arraycomm.bench import plot
from arraycomm.bench.harness import Timing
from arraycomm.bench.plot import Panel
from arraycomm.bench.results import Cell
from arraycomm.bench.results import Timing as Rounds
from arraycomm.bench.sweep import Cell as Figures
from arraycomm.bench.sweep import Row


def figures(time, busbw):
    return Figures(Timing(time, time, time, 100), busbw, busbw, 0)


ROWS = [
    Row("all_reduce", 1 << 20, 1 << 18, "float32", "sum", -1, figures(1.25, 0.01), figures(1.5, 0.02)),
    Row("all_reduce", 8, 2, "float32", "product", -1, figures(12345.6, 3.0), figures(100.25, 4.97)),
    Row("broadcast", 64, 16, "bfloat16", "", 3, figures(1.0, 2.0), None),
    Row("barrier", 0, 0, "", "", -1, figures(2.0, 0.0), None),
]


def cell(operation, size, ranks=2, **times):
    timings = {name.replace("_", "/"): Rounds(((time, time),), 1, 0, time, time, time) for name, time in times.items()}
    return Cell(operation, ranks, size, "float32", timings)


def test_curves_are_named_by_what_differs():
    assert plot.sweep_panels(ROWS[:2]) == [
        Panel("all_reduce: time (\N{MICRO SIGN}s)", {
            "sum out-of-place": [(1 << 20, 1.25)], "sum in-place": [(1 << 20, 1.5)],
            "prod out-of-place": [(8, 12345.6)], "prod in-place": [(8, 100.25)]}),
        Panel("all_reduce: bus bandwidth (GB/s)", {
            "sum out-of-place": [(1 << 20, 0.01)], "sum in-place": [(1 << 20, 0.02)],
            "prod out-of-place": [(8, 3.0)], "prod in-place": [(8, 4.97)]}, log=False)]
    assert [panel and list(panel.curves) for panel in plot.sweep_panels(ROWS[2:])] == [["out-of-place"]] * 3 + [None]


def test_every_number_of_ranks_begins_a_row():
    panels = plot.compare_panels([cell("broadcast", 8, ours_shm=1.0, gloo=9.0), cell("broadcast", 16, ours_shm=2.0),
                                  cell("barrier", 0, ranks=4, gloo=9.0)])
    assert panels == [Panel("broadcast, 2 ranks: time (\N{MICRO SIGN}s)",
                            {"ours/shm": [(8, 1.0), (16, 2.0)], "gloo": [(8, 9.0)]}),
                      None, None, None, Panel("barrier, 4 ranks: time (\N{MICRO SIGN}s)", {"gloo": [(0, 9.0)]}), None, None, None]


@pytest.mark.parametrize("panels", [
    plot.sweep_panels(ROWS), plot.sweep_panels(ROWS[2:3]), plot.sweep_panels(ROWS[3:]),
    plot.compare_panels([cell("broadcast", 8, ours_shm=1.0, gloo=9.0), cell("barrier", 0, ranks=4, gloo=9.0)])],
    ids=["several", "one", "a barrier alone", "a comparison"])
def test_a_drawing_has_all_panels(tmp_path, panels):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.svg"
    plot.write_plot(str(path), panels, "a title")
    text = path.read_text()
    assert all(f"<!-- {title} -->" in text for title in ["a title", *(panel.title for panel in panels if panel)])
    names = {name for panel in panels if panel for name, points in panel.curves.items() if points[0][0]}
    assert all(f"<!-- {name} -->" in text for name in names)
    plot.write_plot(str(tmp_path / "out.png"), panels, "a title")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_ticks_are_sizes_as_they_are_given():
    assert [plot.short_size(size) for size in (8, 1024, 3 << 19, 1 << 30)] == ["8", "1K", "1.5M", "1G"]


def test_plot_without_matplotlib_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        plot.require()

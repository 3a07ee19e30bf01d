"""What sweep and comparison draw."""

from __future__ import annotations

from pathlib import Path

import pytest

from arraycomm.bench import plot
from arraycomm.bench.harness import Timing
from arraycomm.bench.plot import Panel
from arraycomm.bench.results import Cell
from arraycomm.bench.results import Timing as Rounds
from arraycomm.bench.sweep import Cell as Figures
from arraycomm.bench.sweep import Row
from tests.present import present


def figures(time: float, busbw: float) -> Figures:
    return Figures(Timing(time, time, time, 100), busbw, busbw, 0)


ROWS = [
    Row("all_reduce", 1 << 20, 1 << 18, "float32", "sum", -1, figures(1.25, 0.01), figures(1.5, 0.02)),
    Row("all_reduce", 8, 2, "float32", "product", -1, figures(12345.6, 3.0), figures(100.25, 4.97)),
    Row("broadcast", 64, 16, "bfloat16", "", 3, figures(1.0, 2.0), None),
    Row("barrier", 0, 0, "", "", -1, figures(2.0, 0.0), None),
]


def cell(operation: str, size: int, ranks: int = 2, **times: float) -> Cell:
    timings = {name.replace("_", "/"): Rounds(((time, time),), 1, 0, time, time, time) for name, time in times.items()}
    return Cell(operation, ranks, size, "float32", timings)


def test_curves_are_named_by_what_differs() -> None:
    assert plot.sweep_panels(ROWS[:2]) == [
        Panel("all_reduce: time", {
            "sum out-of-place": [(1 << 20, 1.25)], "sum in-place": [(1 << 20, 1.5)],
            "prod out-of-place": [(8, 12345.6)], "prod in-place": [(8, 100.25)]}),
        Panel("all_reduce: bus bandwidth", {
            "sum out-of-place": [(1 << 20, 0.01)], "sum in-place": [(1 << 20, 0.02)],
            "prod out-of-place": [(8, 3.0)], "prod in-place": [(8, 4.97)]}, "GB/s")]
    assert [panel and list(panel.curves) for panel in plot.sweep_panels(ROWS[2:])] == [["out-of-place"]] * 3 + [None]


def test_every_number_of_ranks_begins_a_row() -> None:
    panels = plot.compare_panels([cell("broadcast", 8, ours_shm=1.0, gloo=9.0), cell("broadcast", 16, ours_shm=2.0),
                                  cell("barrier", 0, ranks=4, gloo=9.0)])
    assert panels == [Panel("broadcast, 2 ranks", {"ours/shm": [(8, 1.0), (16, 2.0)], "gloo": [(8, 9.0)]}),
                      None, None, Panel("barrier, 4 ranks", {"gloo": [(0, 9.0)]})]


RATIOS = [cell("broadcast", 8, ours_shm=1.0, gloo=4.0), cell("broadcast", 1024, ours_shm=2.0, gloo=1.0),
          cell("broadcast", 8, ranks=4, ours_shm=1.0, gloo=2.0), cell("barrier", 0, ours_shm=1.0, gloo=3.0),
          cell("scan", 8, gloo=1.0)]


def test_ratios_have_a_panel_for_each_operation_and_a_curve_for_each_number_of_ranks() -> None:
    assert plot.ratio_panels(RATIOS, []) == [
        Panel("broadcast", {"2 ranks": [(8, 4.0), (1024, 0.5)], "4 ranks": [(8, 2.0)]}, "\N{MULTIPLICATION SIGN}",
              {"2 ranks": [(8, 4.0, 4.0), (1024, 0.5, 0.5)], "4 ranks": [(8, 2.0, 2.0)]}),
        Panel("barrier", {"2 ranks": [(0, 3.0)]}, "\N{MULTIPLICATION SIGN}", {"2 ranks": [(0, 3.0, 3.0)]})]
    (panel,) = plot.ratio_panels([cell("broadcast", 8, ours_shm=1.0, ours_tcp=2.0, gloo=4.0)], [])
    assert list(present(panel).curves) == ["shm, 2 ranks", "tcp, 2 ranks"]


def test_panels_of_one_unit_have_the_same_axes() -> None:
    pytest.importorskip("matplotlib")
    axes = plot._figure(plot.sweep_panels(ROWS), "").axes
    times, rates = ([one for one in axes if one.get_title() in [f"{name}: {what}" for name in ("all_reduce", "broadcast")]]
                    for what in ("time", "bus bandwidth"))
    for alike in (times, rates):
        assert len(alike) == 2 and len({(one.get_xlim(), one.get_ylim()) for one in alike}) == 1
    assert times[0].get_ylim() != rates[0].get_ylim()


@pytest.mark.parametrize("panels", [
    plot.sweep_panels(ROWS), plot.sweep_panels(ROWS[2:3]), plot.sweep_panels(ROWS[3:]),
    plot.compare_panels([cell("broadcast", 8, ours_shm=1.0, gloo=9.0), cell("barrier", 0, ranks=4, gloo=9.0)]),
    plot.ratio_panels(RATIOS, [])], ids=["several", "one", "a barrier alone", "a comparison", "ratios"])
def test_a_drawing_has_all_panels(tmp_path: Path, panels: list[Panel | None]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.svg"
    plot.write_plot(str(path), panels, "a title")
    text = path.read_text()
    assert all(f">{title}</text>" in text for title in ["a title", *(panel.title for panel in panels if panel)])
    names = {name for panel in panels if panel for name, points in panel.curves.items() if points[0][0]}
    assert all(f">{name}</text>" in text for name in names)
    plot.write_plot(str(tmp_path / "out.png"), panels, "a title")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_ticks_have_units() -> None:
    assert [plot.short_size(size) for size in (8, 1024, 3 << 19, 1 << 30)] == ["8 B", "1 KiB", "1.5 MiB", "1 GiB"]
    ticks = [(0.5, "us"), (2e3, "us"), (3e6, "us"), (4, "GB/s"), (2, "\N{MULTIPLICATION SIGN}")]
    assert [plot.short_value(*tick) for tick in ticks] == [
        "0.5 \N{MICRO SIGN}s", "2 ms", "3 s", "4 GB/s", "2\N{MULTIPLICATION SIGN}"]


@pytest.mark.parametrize("option", ["--plot", "--html"])
def test_without_matplotlib_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=rf"^{option} needs matplotlib: pip install .*'arraycomm\[bench\]'"):
        plot.require(option)

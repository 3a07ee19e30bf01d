"""Curves over size, drawn without a display: time and bandwidth of a sweep, times and ratios of a comparison's contenders."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from .data import label
from .report import redop
from .results import OURS, Cell
from .sweep import Row

_PANEL = (3.0, 2.3)  # inches: three beside each other are legible in the width of a page
_COLUMNS = 3
_LETTERS = 12  # of a title, an inch
# Okabe and Ito, "Color Universal Design", 2008: colours that the colour-blind tell apart. Markers differ too, for print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "os^Dv<>"
_TIME, _RATE, _RATIO = "us", "GB/s", "\N{MULTIPLICATION SIGN}"
# Text stays text, and no two runs differ by names of parts or by a date.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "arraycomm"}
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}
RATIO_TITLE = (f"best other library's time over arraycomm's: above 1{_RATIO} arraycomm is faster "
               "(shaded: range over rounds)")

Curves = dict[str, list[tuple[int, float]]]  # name: (bytes, value); bytes are 0 where the operation moves none
Bands = dict[str, list[tuple[int, float, float]]]  # name: (bytes, lowest, highest)


class Panel(NamedTuple):
    title: str
    curves: Curves
    unit: str = _TIME
    bands: Bands = {}


def require(option: str) -> None:
    """Raises ModuleNotFoundError that says what to install: better before an hour of measuring than after."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{option} needs matplotlib: pip install matplotlib, or 'arraycomm[bench]'") from error


def sweep_panels(rows: Sequence[Row]) -> list[Panel | None]:
    """For each operation a row: the time and the bus bandwidth. Curve names have the placement and the parameters that differ."""
    panels: list[Panel | None] = []
    for operation in dict.fromkeys(row.operation for row in rows):
        own = [row for row in rows if row.operation == operation]
        keys = [(label(row.dtype), redop(row.op), f"root {row.root}") for row in own]
        differ = [len(set(parts)) > 1 for parts in zip(*keys, strict=True)]
        times: Curves = {}
        bandwidths: Curves = {}
        for row, key in zip(own, keys, strict=True):
            for placement, cell in row.cells():
                name = " ".join([*(part for part, shown in zip(key, differ, strict=True) if shown), placement])
                times.setdefault(name, []).append((row.size, cell.timing.time))
                bandwidths.setdefault(name, []).append((row.size, cell.busbw))
        panels.append(Panel(f"{operation}: time", times))
        panels.append(Panel(f"{operation}: bus bandwidth", bandwidths, _RATE) if own[-1].size else None)
    return panels


def compare_panels(cells: Sequence[Cell]) -> list[Panel | None]:
    """The times of each operation and number of ranks, of which each begins a row."""
    panels: list[Panel | None] = []
    for ranks in dict.fromkeys(cell.ranks for cell in cells):
        found: dict[str, Curves] = {}
        for cell in (cell for cell in cells if cell.ranks == ranks):
            for name, timing in cell.timings.items():
                found.setdefault(cell.operation, {}).setdefault(name, []).append((cell.size, timing.time))
        panels += [Panel(f"{operation}, {ranks} ranks", curves) for operation, curves in found.items()]
        panels += [None] * (-len(panels) % _COLUMNS)
    while panels and panels[-1] is None:
        panels.pop()
    return panels


def ratio_panels(cells: Sequence[Cell], network: Iterable[str]) -> list[Panel | None]:
    """For each operation the ratios, a curve for each number of ranks, and contender of ours if there are several."""
    found: dict[str, Panel] = {}
    several = len({name for cell in cells for name in cell.timings if name.startswith(OURS)}) > 1
    for cell in cells:
        panel = found.setdefault(cell.operation, Panel(cell.operation, {}, _RATIO, {}))
        for verdict in cell.verdicts(network):
            name = f"{verdict.ours.removeprefix(OURS)}, {cell.ranks} ranks" if several else f"{cell.ranks} ranks"
            panel.curves.setdefault(name, []).append((cell.size, verdict.ratio))
            panel.bands.setdefault(name, []).append((cell.size, verdict.low, verdict.high))
    return [panel for panel in found.values() if panel.curves]


def write_plot(path: str, panels: Sequence[Panel | None], title: str, columns: int = _COLUMNS) -> None:
    """Writes path, .svg or .png."""
    with open(path, "wb") as file:
        _save(file, path.rpartition(".")[2], panels, title, columns)


def svg(panels: Sequence[Panel | None], title: str) -> str:
    """The drawing as an element of an HTML page."""
    file = io.BytesIO()
    _save(file, "svg", panels, title)
    text = file.getvalue().decode()
    return text[text.index("<svg"):]


def _save(file: Any, form: str, panels: Sequence[Panel | None], title: str, columns: int = _COLUMNS) -> None:
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        _figure(panels, title, columns).savefig(file, format=form, metadata=_NO_METADATA if form == "svg" else None)


def _figure(panels: Sequence[Panel | None], title: str, columns: int = _COLUMNS) -> Any:
    """Ours are thick, what is in place dashed; an operation without sizes has bars. Panels of one unit have the same axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for panel in panels if panel for name in panel.curves))
    rows, columns = -(-len(panels) // columns), min(len(panels), columns)
    width = _PANEL[0] * max(columns, 2)  # for the title
    figure = Figure(figsize=(width, _PANEL[1] * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    styles = {name: {"color": colour, "marker": marker}
              for name, colour, marker in zip(names, cycle(_COLOURS), cycle(_MARKERS), strict=False)}
    units: dict[str, list[Any]] = {}
    for one, panel in zip(axes, [*panels, *[None] * (len(axes) - len(panels))], strict=True):
        if panel is None:
            one.set_axis_off()
        elif _draw(one, panel, styles):
            units.setdefault(panel.unit, []).append(one)
    for alike in units.values():
        _same_axes(alike)
    keys = dict(pair for one in axes for pair in zip(*one.get_legend_handles_labels()[::-1], strict=True))
    if keys:
        figure.legend(keys.values(), keys, loc="outside lower center", ncols=min(len(keys), int(width / 1.5)), frameon=False)
    figure.suptitle("\n".join(textwrap.fill(line, int(_LETTERS * width)) for line in title.splitlines()), fontsize="medium")
    return figure


def _draw(axes: Any, panel: Panel, styles: dict[str, dict[str, str]]) -> bool:
    """False if the operation has no sizes."""
    axes.set_title(panel.title, fontsize="medium", fontweight="bold")
    axes.tick_params(labelsize="small")
    axes.grid(True, alpha=0.3)
    sized = any(size for points in panel.curves.values() for size, _ in points)
    if panel.unit == _RATIO:
        (axes.axhline if sized else axes.axvline)(1, color="black", linewidth=1)
    if not sized:
        axes.barh(list(panel.curves), [points[0][1] for points in panel.curves.values()],
                  color=[styles[name]["color"] for name in panel.curves])
        axes.locator_params(axis="x", nbins=4)
        axes.xaxis.set_major_formatter(lambda value, _: short_value(value, panel.unit))
        return False
    _scale(axes, panel.unit)
    for name, points in panel.curves.items():
        axes.plot(*zip(*sorted(points), strict=True), label=name, **styles[name], markersize=4,
                  linestyle="--" if name.endswith("in-place") else "-", linewidth=2.4 if name.startswith(OURS) else 1.2)
    low, high = axes.get_ylim()  # a band may leave the panel: one round of bad luck would press all curves flat
    for name, band in panel.bands.items():
        axes.fill_between(*zip(*sorted(band), strict=True), color=styles[name]["color"], alpha=0.15, linewidth=0)
    if panel.unit == _RATE:
        axes.set_ylim(0, high)
    else:
        axes.set_ylim(low / 1.2, high * 1.2)
    return True


def _scale(axes: Any, unit: str) -> None:
    """Ticks with their units."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=32))
    axes.xaxis.set_major_formatter(lambda size, _: short_size(size))
    if unit != _RATE:
        axes.set_yscale("log", base=2 if unit == _RATIO else 10)
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, _: short_value(value, unit))


def _same_axes(axes: Sequence[Any]) -> None:
    for get, set_ in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
        limits = [getattr(one, get)() for one in axes]
        for one in axes:
            getattr(one, set_)(min(low for low, _ in limits), max(high for _, high in limits))


def short_size(size: float) -> str:
    """A tick: 64 KiB rather than 2 to the 16th."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"


def short_value(value: float, unit: str) -> str:
    """A tick. Times are in microseconds."""
    if unit == _RATIO:
        return f"{value:g}{unit}"
    if unit == _RATE:
        return f"{value:g} {unit}"
    for size, name in ((1e6, "s"), (1e3, "ms")):
        if value >= size:
            return f"{value / size:g} {name}"
    return f"{value:g} \N{MICRO SIGN}s"

"""Curves over size, drawn without a display: time and bandwidth of a sweep, the times of a comparison's contenders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .data import label
from .report import redop
from .results import OURS, Cell
from .sweep import Row

_PANEL = (3.6, 2.7)  # inches
_COLUMNS = 4

Curves = dict[str, list[tuple[int, float]]]  # name: (bytes, value); bytes are 0 where the operation moves none


class Panel(NamedTuple):
    title: str
    curves: Curves
    log: bool = True


def require() -> None:
    """Raises ModuleNotFoundError that says what to install: better before an hour of measuring than after."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("--plot needs matplotlib: pip install matplotlib") from error


def sweep_panels(rows: Sequence[Row]) -> list[Panel | None]:
    """For each operation the time and the bus bandwidth. Curve names have the placement and the parameters that differ."""
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
        panels.append(Panel(f"{operation}: time (\N{MICRO SIGN}s)", times))
        panels.append(Panel(f"{operation}: bus bandwidth (GB/s)", bandwidths, log=False) if own[-1].size else None)
    return panels


def compare_panels(cells: Sequence[Cell]) -> list[Panel | None]:
    """The times of each operation and number of ranks, of which each begins a row."""
    panels: list[Panel | None] = []
    for ranks in dict.fromkeys(cell.ranks for cell in cells):
        found: dict[str, Curves] = {}
        for cell in (cell for cell in cells if cell.ranks == ranks):
            for name, timing in cell.timings.items():
                found.setdefault(cell.operation, {}).setdefault(name, []).append((cell.size, timing.time))
        panels += [Panel(f"{operation}, {ranks} ranks: time (\N{MICRO SIGN}s)", curves) for operation, curves in found.items()]
        panels += [None] * (-len(panels) % _COLUMNS)
    return panels


def write_plot(path: str, panels: Sequence[Panel | None], title: str) -> None:
    """Writes path (.svg or .png). Ours are thick, what is in place dashed; an operation without sizes has bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for panel in panels if panel for name in panel.curves))
    rows, columns = -(-len(panels) // _COLUMNS), min(len(panels), _COLUMNS)
    figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for one, panel in zip(axes, [*panels, *[None] * (len(axes) - len(panels))], strict=True):
        if panel is None:
            one.set_axis_off()
        else:
            _draw(one, panel, {name: f"C{number % 10}" for number, name in enumerate(names)})
    keys = dict(pair for one in axes for pair in zip(*one.get_legend_handles_labels()[::-1], strict=True))
    if keys:
        figure.legend(keys.values(), keys, loc="outside lower center", ncols=min(len(keys), 6), fontsize="small", frameon=False)
    figure.supxlabel("size (bytes)", fontsize="small")
    figure.suptitle(title)
    figure.savefig(path)


def _draw(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    axes.set_title(panel.title, fontsize="medium")
    axes.tick_params(labelsize="small")
    axes.grid(True, alpha=0.3)
    if not any(size for points in panel.curves.values() for size, _ in points):
        axes.barh(list(panel.curves), [points[0][1] for points in panel.curves.values()],
                  color=[colours[name] for name in panel.curves])
        return
    for name, points in panel.curves.items():
        axes.plot(*zip(*sorted(points), strict=True), label=name, color=colours[name], marker=".",
                  linestyle="--" if name.endswith("in-place") else "-", linewidth=2.4 if name.startswith(OURS) else 1.2)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: short_size(size))
    if panel.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def short_size(size: float) -> str:
    """A tick: 64K rather than 2 to the 16th, in the letters of the command line."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size / unit:g}{letter}"
    return f"{size:g}"

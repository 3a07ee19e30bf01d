"""Latency and bandwidth curves over size, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .data import label
from .report import redop
from .sweep import Row

_PLACEMENTS = {"out-of-place": "-", "in-place": "--"}


def require() -> None:
    """Raises ModuleNotFoundError that says what to install: better before an hour of measuring than after."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("--plot needs matplotlib: pip install matplotlib") from error


def curves(rows: Sequence[Row]) -> dict[tuple[str, str], list[tuple[int, float, float]]]:
    """(name, placement) -> (bytes, microseconds, GB/s of busbw). Names say no more than tells the curves apart."""
    sized = [row for row in rows if row.size]
    keys = {row: (row.operation, label(row.dtype), redop(row.op), f"root {row.root}") for row in sized}
    # Of one operation, that is: an all_reduce has a reduction where a broadcast has none, and no root.
    variants = {key[0]: [other for other in keys.values() if other[0] == key[0]] for key in keys.values()}
    differ = [not part or any(len({key[part] for key in own}) > 1 for own in variants.values()) for part in range(4)]
    found: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for row, key in keys.items():
        name = " ".join(part for part, shown in zip(key, differ, strict=True) if shown)
        for placement, cell in row.cells():
            found.setdefault((name, placement), []).append((row.size, cell.timing.time, cell.busbw))
    return found


def write_plot(path: str, rows: Sequence[Row], title: str) -> None:
    """Writes path (.svg or .png): time on the left, bus bandwidth on the right, a colour for each name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(13, 5), layout="constrained")
    FigureCanvasAgg(figure)
    latency, bandwidth = figure.subplots(1, 2)
    found = curves(rows)
    styles = _styles(list(dict.fromkeys(name for name, _ in found)))
    for (name, placement), points in found.items():
        sizes, times, busbw = zip(*sorted(points), strict=True)
        for axes, values in ((latency, times), (bandwidth, busbw)):
            axes.plot(sizes, values, linestyle=_PLACEMENTS[placement], linewidth=1.2, markersize=4, **styles[name])
    for axes, unit in ((latency, "time (\N{MICRO SIGN}s)"), (bandwidth, "bus bandwidth (GB/s)")):
        axes.set(xlabel="size (bytes)", ylabel=unit)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda size, _: short_size(size))
        axes.grid(True, alpha=0.3)
    latency.set_yscale("log")
    bandwidth.set_ylim(bottom=0)
    placements = dict.fromkeys(placement for _, placement in found)
    keys = [Line2D([], [], label=name, markersize=4, **style) for name, style in styles.items()]
    keys += [Line2D([], [], label=name, color="grey", linestyle=_PLACEMENTS[name]) for name in placements]
    if keys:
        figure.legend(handles=keys, loc="outside right upper", fontsize="small", frameon=False)
    figure.suptitle(title)
    figure.savefig(path)


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    # A second marker where the ten colours come again.
    return {name: {"color": f"C{index % 10}", "marker": ".x^sv"[index // 10 % 5]} for index, name in enumerate(names)}


def short_size(size: float) -> str:
    """A tick: 64K rather than 2 to the 16th, in the letters of the command line."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size / unit:g}{letter}"
    return f"{size:g}"

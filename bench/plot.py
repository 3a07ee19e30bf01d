"""Latency and bandwidth curves over size, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .data import label
from .report import redop
from .sweep import Row

_STYLES = {"out-of-place": "-", "in-place": "--"}


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
    differ = [len({key[part] for key in keys.values()}) > 1 for part in range(4)]
    differ[0] = True
    found: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for row, key in keys.items():
        name = " ".join(part for part, shown in zip(key, differ, strict=True) if shown)
        for placement, cell in row.cells():
            found.setdefault((name, placement), []).append((row.size, cell.timing.time, cell.busbw))
    return found


def write_plot(path: str, rows: Sequence[Row], title: str) -> None:
    """Writes path (.svg or .png): time on the left, bus bandwidth on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    latency, bandwidth = figure.subplots(1, 2)
    found = curves(rows)
    colours = {name: f"C{index % 10}" for index, name in enumerate(dict.fromkeys(name for name, _ in found))}
    for (name, placement), points in found.items():
        sizes, times, busbw = zip(*sorted(points), strict=True)
        drawn: dict[str, Any] = {"linestyle": _STYLES[placement], "color": colours[name], "marker": ".",
                                 "label": f"{name} {placement}"}  # fmt: skip
        latency.plot(sizes, times, **drawn)
        bandwidth.plot(sizes, busbw, **drawn)
    for axes, unit in ((latency, "time (us)"), (bandwidth, "bus bandwidth (GB/s)")):
        axes.set(xlabel="size (bytes)", ylabel=unit)
        axes.set_xscale("log", base=2)
        axes.grid(True, alpha=0.3)
    latency.set_yscale("log")
    if found:
        latency.legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path)

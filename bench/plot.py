"""Latency and bandwidth curves over size, drawn without a display: two panels for each operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .data import label
from .report import redop
from .sweep import Row

_PLACEMENTS = {"out-of-place": "-", "in-place": "--"}
_PANEL = (3.6, 2.7)  # inches
_SIDE_BY_SIDE = 2  # operations

Points = list[tuple[int, float, float]]  # bytes, microseconds, GB/s of busbw


def require() -> None:
    """Raises ModuleNotFoundError that says what to install: better before an hour of measuring than after."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("--plot needs matplotlib: pip install matplotlib") from error


def curves(rows: Sequence[Row]) -> dict[str, dict[tuple[str, str], Points]]:
    """operation -> (name, placement) -> its points. Names say no more than tells the curves of an operation apart."""
    found: dict[str, dict[tuple[str, str], Points]] = {}
    for operation in dict.fromkeys(row.operation for row in rows if row.size):
        own = [row for row in rows if row.size and row.operation == operation]
        keys = [(label(row.dtype), redop(row.op), f"root {row.root}") for row in own]
        differ = [len(set(parts)) > 1 for parts in zip(*keys, strict=True)]
        panel = found[operation] = {}
        for row, key in zip(own, keys, strict=True):
            name = " ".join(part for part, shown in zip(key, differ, strict=True) if shown)
            for placement, cell in row.cells():
                panel.setdefault((name, placement), []).append((row.size, cell.timing.time, cell.busbw))
    return found


def unsized(rows: Sequence[Row]) -> str:
    """What has no curve: a barrier's time."""
    return ", ".join(f"{row.operation}: {row.out_of_place.timing.time:.3g} \N{MICRO SIGN}s" for row in rows if not row.size)


def write_plot(path: str, rows: Sequence[Row], title: str) -> None:
    """Writes path (.svg or .png): for each operation time beside bus bandwidth, a colour for each name."""
    found = curves(rows)
    across = min(_SIDE_BY_SIDE, max(len(found), 1))
    down = -(-len(found) // across) or 1
    styles = _styles(list(dict.fromkeys(name for panel in found.values() for name, _ in panel)))
    with panels(path, down, 2 * across, "\n".join(filter(None, (title, unsized(rows))))) as axes:
        for number, (operation, panel) in enumerate(found.items()):
            latency, bandwidth = axes[2 * number : 2 * number + 2]
            for (name, placement), points in panel.items():
                sizes, times, busbw = zip(*sorted(points), strict=True)
                for one, values in ((latency, times), (bandwidth, busbw)):
                    one.plot(sizes, values, linestyle=_PLACEMENTS[placement], linewidth=1.2, markersize=4, **styles[name])
            dress(latency, f"{operation}: time (\N{MICRO SIGN}s)")
            dress(bandwidth, f"{operation}: bus bandwidth (GB/s)")
            latency.set_yscale("log")
            bandwidth.set_ylim(bottom=0)
        # The legend's keys: colours stand for names, line styles for placements.
        keys: dict[str, dict[str, Any]] = {name: {"markersize": 4, **style} for name, style in styles.items() if name}
        for placement in dict.fromkeys(placement for panel in found.values() for _, placement in panel):
            keys[placement] = {"color": "grey", "linestyle": _PLACEMENTS[placement]}
        for name, style in keys.items():
            axes[0].plot([], [], label=name, **style)


@contextmanager
def panels(path: str, rows: int, columns: int, title: str) -> Iterator[Sequence[Any]]:
    """The axes of a figure, row by row. On exit axes without data are hidden, and the figure is written, with a legend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    yield axes
    keys: dict[str, Any] = {}
    for one in axes:
        if not one.has_data():
            one.set_axis_off()
        for handle, name in zip(*one.get_legend_handles_labels(), strict=True):
            keys.setdefault(name, handle)
    if keys:
        figure.legend(keys.values(), keys, loc="outside lower center", ncols=min(len(keys), 6), fontsize="small", frameon=False)
    figure.supxlabel("size (bytes)", fontsize="small")
    figure.suptitle(title)
    figure.savefig(path)


def dress(axes: Any, title: str) -> None:
    """Title, ticks and grid of axes over sizes."""
    axes.set_title(title, fontsize="medium")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: short_size(size))
    axes.tick_params(labelsize="small")
    axes.grid(True, alpha=0.3)


def _styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    # A second marker where the ten colours come again.
    return {name: {"color": f"C{index % 10}", "marker": ".x^sv"[index // 10 % 5]} for index, name in enumerate(names)}


def short_size(size: float) -> str:
    """A tick: 64K rather than 2 to the 16th, in the letters of the command line."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size / unit:g}{letter}"
    return f"{size:g}"

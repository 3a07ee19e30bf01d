"""The comparison as small multiples: time over size, a panel for each operation and number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .results import OURS, Cell

_PANEL = (3.4, 2.9)  # inches
_COLUMNS = 4


def write_plot(path: str, cells: Sequence[Cell], title: str) -> None:
    """Writes path (.svg or .png). Ours are thick; an operation without sizes gets bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.ranks, cell.operation), []).append(cell)
    operations, ranks = len({cell.operation for cell in cells}), len({cell.ranks for cell in cells})
    columns = max(2, min(_COLUMNS, operations))
    rows = ranks * -(-operations // columns)
    figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False)
    colours = {name: f"C{index % 10}" for index, name in enumerate(_names(cells))}
    for axes, place in zip(panels.flat, _places(list(groups), columns), strict=False):
        if place is None:
            axes.set_axis_off()
            continue
        chosen = groups[place]
        (_curves if any(cell.size for cell in chosen) else _bars)(axes, chosen, colours)
        axes.set_title(f"{place[1]}, {place[0]} ranks", fontsize="medium")
    _legend(figure, panels)
    figure.suptitle(title)
    figure.savefig(path)


def _names(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in cell.timings))


def _places(keys: Sequence[tuple[int, str]], columns: int) -> list[tuple[int, str] | None]:
    """What each panel shows, row by row: every number of ranks begins a row, None stays empty."""
    places: list[tuple[int, str] | None] = []
    for ranks in dict.fromkeys(ranks for ranks, _ in keys):
        places += [key for key in keys if key[0] == ranks]
        places += [None] * (-len(places) % columns)
    return places


def curves(cells: Sequence[Cell]) -> dict[str, list[tuple[int, float]]]:
    """Contender: (bytes, microseconds) by size."""
    found: dict[str, list[tuple[int, float]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.size):
        for name, timing in cell.timings.items():
            found.setdefault(name, []).append((cell.size, timing.time))
    return found


def _curves(axes: Any, cells: Sequence[Cell], colours: dict[str, str]) -> None:
    for name, points in curves(cells).items():
        sizes, times = zip(*points, strict=True)
        axes.plot(sizes, times, label=name, **_style(name, colours))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes", fontsize="small")
    axes.set_ylabel("us", fontsize="small")
    axes.grid(True, alpha=0.3)


def _style(name: str, colours: dict[str, str]) -> dict[str, Any]:
    return {"color": colours[name], "marker": ".", "linewidth": 2.4 if name.startswith(OURS) else 1.0}


def _bars(axes: Any, cells: Sequence[Cell], colours: dict[str, str]) -> None:
    for cell in cells:
        names = list(cell.timings)
        axes.barh(names, [cell.timings[name].time for name in names], color=[colours[name] for name in names])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlabel("us", fontsize="small")


def _legend(figure: Any, panels: Any) -> None:
    """One for all: the panels' contenders differ."""
    shown: dict[str, Any] = {}
    for axes in panels.flat:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(name, handle)
    if shown:
        figure.legend(shown.values(), shown, loc="outside lower center", ncols=len(shown), fontsize="small")

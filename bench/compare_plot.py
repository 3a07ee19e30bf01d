"""The comparison as small multiples: time over size, a panel for each operation and number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .plot import dress, panels
from .results import OURS, Cell

_COLUMNS = 4


def write_plot(path: str, cells: Sequence[Cell], title: str) -> None:
    """Writes path (.svg or .png). Ours are thick; an operation without sizes gets bars."""
    groups: dict[tuple[int, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.ranks, cell.operation), []).append(cell)
    columns = max(2, min(_COLUMNS, len({cell.operation for cell in cells})))
    places = _places(list(groups), columns)
    names = dict.fromkeys(name for cell in cells for name in cell.timings)
    colours = {name: f"C{index % 10}" for index, name in enumerate(names)}
    with panels(path, len(places) // columns, columns, title) as axes:
        for one, place in zip(axes, places, strict=True):
            if place is not None:
                chosen = groups[place]
                draw = _curves if any(cell.size for cell in chosen) else _bars
                draw(one, chosen, colours, f"{place[1]}, {place[0]} ranks: time (\N{MICRO SIGN}s)")


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


def _curves(axes: Any, cells: Sequence[Cell], colours: dict[str, str], title: str) -> None:
    for name, points in curves(cells).items():
        sizes, times = zip(*points, strict=True)
        axes.plot(sizes, times, label=name, color=colours[name], marker=".", linewidth=2.4 if name.startswith(OURS) else 1.0)
    dress(axes, title)
    axes.set_yscale("log")


def _bars(axes: Any, cells: Sequence[Cell], colours: dict[str, str], title: str) -> None:
    for cell in cells:
        names = list(cell.timings)
        axes.barh(names, [cell.timings[name].time for name in names], color=[colours[name] for name in names])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_title(title, fontsize="medium")

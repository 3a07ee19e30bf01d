"""From times to thresholds: the lists of algorithms with the smallest loss, close to the engine's own table.

A gain counts only if every round shows it, a loss always, so that the selection does not follow the noise of one run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from typing import Any

from arraycomm.core.interface.tuning import INSIDE, Choice, Pick, names, shipped, simplified

GAIN = 1.03  # a smaller gain does not move a threshold, even if all rounds agree
_NEW = math.log(1.05)  # the least gain for a pair of neighbours that the table does not have
_MOVE = 0.005  # the penalty for a deviation from the table without a clear gain


@dataclass
class Cell:
    """Times of one operation, transport, number of ranks and size (bytes of the whole array): by round, then algorithm, us."""

    operation: str
    transport: str
    ranks: int
    size: int
    rounds: list[dict[str, float]] = field(default_factory=list)
    machine: str = ""  # the machine of the measurement
    cores: int = 0  # the machine's CPUs

    @property
    def dedicated(self) -> bool:
        """Whether each rank had its own CPU; has no effect between hosts."""
        return self.transport in INSIDE and self.ranks <= self.cores

    def over_best(self, picks: Sequence[Pick]) -> float | None:
        """Time of what the list picks over the best time; None where that was not measured."""
        mine, best = self.time(at(picks, self.size)), self.time(self.best())
        return mine / best if mine and best else None

    @property
    def names(self) -> list[str]:
        """The algorithms that were measured, in the order of the engine's table."""
        measured = {name for times in self.rounds for name in times}
        return [name for name in names()[self.operation] if name in measured]

    def time(self, name: str) -> float | None:
        """The median; None where it was not measured."""
        times = [times[name] for times in self.rounds if name in times]
        return median(times) if times else None

    def best(self) -> str:
        return min(self.names, key=lambda name: self.time(name) or math.inf)

    def ratios(self, slow: str, fast: str) -> list[float]:
        """By round, lowest first: how many times the one takes of the other's time."""
        return sorted(times[slow] / times[fast] for times in self.rounds if slow in times and fast in times)

    def loss(self, name: str, table: str) -> float:
        """Logarithm of what `name` costs in place of `table`; infinite where it was not measured beside it."""
        ratios = self.ratios(table, name)
        if name == table or not ratios:
            return 0.0 if name == table else math.inf
        middle = median(ratios)
        clear = middle < 1 or (ratios[0] > 1 and middle >= GAIN)
        return -math.log(middle) if clear else _MOVE


@dataclass(frozen=True)
class Decision:
    """What to use for one operation, transport and number of ranks on a machine. regret: times over the best, geometric mean."""

    choice: Choice
    table: tuple[Pick, ...]
    cells: tuple[Cell, ...]

    def regret(self, picks: Sequence[Pick]) -> float:
        return geometric_mean(self.losses(picks))

    def losses(self, picks: Sequence[Pick]) -> list[float]:
        """By size: its times over the best; leaves out what was not measured."""
        return [loss for cell in self.cells if (loss := cell.over_best(picks))]

    @property
    def changed(self) -> bool:
        return self.choice.picks != self.table

    def moved(self) -> list[tuple[Cell, str, str]]:
        """Cells that change and have both in their samples: (cell, the table's algorithm, the new one)."""
        both = ((cell, at(self.table, cell.size), at(self.choice.picks, cell.size)) for cell in self.cells)
        return [(cell, before, after) for cell, before, after in both if before != after and cell.ratios(before, after)]


def at(picks: Sequence[Pick], size: int) -> str:
    """The algorithm for this number of bytes."""
    return next(pick.name for pick in picks if pick.up_to is None or size <= pick.up_to)


def decide(cells: Iterable[Cell], together: bool = False) -> list[Decision]:
    """One for each machine, number of ranks, transport and operation. together: whatever leaves the engine's table is a gain for
    every machine and number of ranks that was measured, and the same for all for which the table is the same."""
    rows: dict[tuple[str, int, str, str], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.size):
        rows.setdefault((cell.machine, cell.ranks, cell.transport, cell.operation), []).append(cell)
    return [_decision(row, _alike(row, rows.values()) if together else [row]) for _, row in sorted(rows.items())]


def _alike(row: Sequence[Cell], rows: Iterable[Sequence[Cell]]) -> list[Sequence[Cell]]:
    """The rows of other machines and numbers of ranks that want the same list; this one among them."""
    def want(cells: Sequence[Cell]) -> tuple[object, ...]:
        first = cells[0]
        return first.operation, first.transport, first.dedicated, [cell.size for cell in cells], _table(cells)

    return [other for other in rows if want(other) == want(row)]


def _table(row: Sequence[Cell]) -> tuple[Pick, ...]:
    return shipped(row[0].operation, row[0].transport, row[0].ranks, row[0].dedicated)


def _decision(row: Sequence[Cell], alike: Sequence[Sequence[Cell]]) -> Decision:
    table = _table(row)
    found = _picks(row, table, _path(list(zip(*alike, strict=True)), [at(table, cell.size) for cell in row]))
    choice = Choice(row[0].operation, row[0].transport, row[0].ranks, found)
    return Decision(choice, table, tuple(row))


def _path(columns: Sequence[Sequence[Cell]], table: Sequence[str]) -> list[str]:
    """An algorithm for each size, with the least sum of losses and of penalties for new neighbours (dynamic programming). For
    each size the cell with the greatest loss counts."""
    known = set(zip(table, table[1:], strict=False))

    def step(before: str, after: str) -> float:
        return 0.0 if before == after or (before, after) in known else _NEW

    ways: dict[str, tuple[float, list[str]]] = {}
    for column, own in zip(columns, table, strict=True):
        following: dict[str, tuple[float, list[str]]] = {}
        for name in column[0].names:
            loss, way = min(((cost + step(before, name), way) for before, (cost, way) in ways.items()), default=(0.0, []))
            following[name] = (loss + max(cell.loss(name, own) for cell in column), [*way, name])
        ways = following
    return min(ways.values())[1]


def _picks(cells: Sequence[Cell], table: Sequence[Pick], path: Sequence[str]) -> tuple[Pick, ...]:
    """The table's own limits if the path follows the table; else a limit between the measured sizes."""
    own = [at(table, cell.size) for cell in cells]
    picks: list[Pick] = []
    if path[0] == own[0]:
        picks += [pick for pick in table if pick.up_to is not None and pick.up_to < cells[0].size]
    for low, high in zip(range(len(cells)), range(1, len(cells)), strict=False):
        between = [pick for pick in table if pick.up_to is not None and cells[low].size <= pick.up_to < cells[high].size]
        if path[low] in [own[low], *(pick.name for pick in between[:1])] and path[high] == own[high]:
            picks += between
        elif path[low] != path[high]:
            picks.append(Pick(path[low], _between(cells[low].size, cells[high].size)))
    beyond = [pick for pick in table if pick.up_to is None or pick.up_to >= cells[-1].size]
    return simplified([*picks, *(beyond if path[-1] == own[-1] else [Pick(path[-1], None)])])


def _between(low: int, high: int) -> int:
    """The power of two nearest below the geometric mean of two sizes; the lower size where that holds none."""
    power = 1 << int(math.log2(math.sqrt(max(low, 1) * high)))
    return power if power >= low else low


def as_samples(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """As JSON's types."""
    return [{"operation": cell.operation, "transport": cell.transport, "ranks": cell.ranks, "size": cell.size,
             "rounds": [{name: round(time, 3) for name, time in times.items()} for times in cell.rounds]} for cell in cells]


def from_samples(found: Iterable[Mapping[str, Any]], machine: Mapping[str, Any]) -> list[Cell]:
    """The same back; rounds of one cell are put together. machine: where they were measured."""
    cells: dict[tuple[str, str, int, int], Cell] = {}
    name, cores = f"{machine['cpu']}, {machine['cores']} processors", int(machine["cores"])
    for entry in found:
        key = (str(entry["operation"]), str(entry["transport"]), int(entry["ranks"]), int(entry["size"]))
        cell = cells.setdefault(key, Cell(*key, machine=name, cores=cores))
        cell.rounds.extend(dict(times) for times in entry["rounds"])
    return list(cells.values())

"""Choices of algorithms as rows of collectives/table.h."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from arraycomm.core.interface import tuning
from arraycomm.core.interface.tuning import Pick, Row

from .tune_choose import Decision, at

_EVEN = "EVEN_HOSTS"  # as HOSTS, but where hosts have different numbers of ranks
_MOST_RANKS = 1024  # beyond which rows are not compared


class Place(NamedTuple):
    """The parameters of a group's rows besides ranks and bytes."""

    transport: str
    dedicated: bool = False
    uneven: bool = False  # hosts have different numbers of ranks

    def sees(self, row: Row, ranks: int) -> bool:
        return row.fits(self.transport, ranks, self.dedicated) and not (self.uneven and row.where == _EVEN)


# The sections of a kind's rows, in order: whose choices they hold, and what their rows count for. Between hosts ("tcp") they go
# by what is known of other networks than the one measured.
_SECTIONS = {Place("symmetric"): "SYMMETRIC", Place("shm", True): "DEDICATED", Place("shm"): "ONE_HOST", Place("hosts"): "HOSTS",
             Place("loopback", True): "DEDICATED_NEAR", Place("loopback"): "NEAR"}
_PLACES = (*_SECTIONS, Place("hosts", uneven=True), Place("tcp"))

Choices = dict[tuple[Place, int], tuple[Pick, ...]]  # by place and number of ranks


def line(row: Row) -> str:
    """The row as a line of C source."""
    does = " | ".join(["CHECKS"] * row.checks + ["AHEAD"] * row.ahead + ["ORDERED"] * row.ordered) or "0"
    return (f'ROW({row.kind.upper()}, "{row.name}", {row.function}, {row.where}, {does}, '
            f"{_bytes(row.up_to)}, {row.max_ranks})")


def _bytes(number: int | None) -> str:
    if number is None:
        return "ALWAYS"
    for unit, shift in {"MiB": 20, "KiB": 10}.items():
        if number and number % (1 << shift) == 0:
            return f"{unit}({number >> shift})"
    return str(number)


def lines(decisions: Iterable[Decision]) -> list[str]:
    """All rows, those of kinds without a choice as they are."""
    chosen: dict[str, Choices] = {}
    for decision in decisions:
        place = Place(decision.choice.transport, decision.cells[0].dedicated and decision.choice.transport != "symmetric")
        if place in _SECTIONS:
            chosen.setdefault(decision.choice.operation, {})[place, decision.choice.ranks] = decision.choice.picks
    made: list[str] = []
    for kind in tuning.operations():
        before = [row for row in tuning.rows() if row.kind == kind]
        made += map(line, derived(before, chosen[kind]) if kind in chosen else before)
    return made


def derived(given: Sequence[Row], choices: Choices) -> list[Row]:
    """The fewest rows of a kind, found by removing redundant rows. For numbers of ranks without a choice the rows of `given`
    apply; several hosts then use the links' rows as before."""
    made = [row for place in _SECTIONS for row in _section(given, choices, place)]
    limits = {row.up_to for row in made if row.up_to is not None}
    sizes = sorted({0, *limits, *(limit + 1 for limit in limits)})
    borders = {row.max_ranks for row in made if row.max_ranks}
    numbers = sorted({2, 3, _MOST_RANKS, *borders, *(border + 1 for border in borders)})

    def wanted(place: Place, ranks: int, size: int) -> str:
        picks = tuning.nearest(ranks, [(number, picks) for (where, number), picks in choices.items() if where == place])
        return at(picks, size) if picks else first(made if place.transport == "hosts" else given, place, ranks, size)

    places = [(place, ranks, size) for place in _PLACES for ranks in numbers for size in sizes]
    expected = [wanted(*one) for one in places]
    return _shortened(made, lambda rows: all(first(rows, *one) == name for one, name in zip(places, expected, strict=True)))


def _section(given: Sequence[Row], choices: Choices, place: Place) -> Iterator[Row]:
    """Rows with the choices, then the existing rows, which apply to more ranks."""
    where = _SECTIONS[place]
    models = {row.name: row for row in given}
    own = sorted(ranks for section, ranks in choices if section == place)
    for number, ranks in enumerate(own):
        most = ranks * 2
        if number + 1 < len(own):
            most = max(more for more in range(ranks, most + 1) if more**2 <= ranks * own[number + 1])
        for pick in choices[place, ranks]:
            yield _placed(models[pick.name], where)._replace(up_to=pick.up_to, max_ranks=most)
    if place == Place("loopback"):  # the last section: its rows for everywhere stay that
        yield from (row for row in given if place.sees(row, row.max_ranks or _MOST_RANKS))
        return
    here = (where, _EVEN) if where == "HOSTS" else (where,)
    yield from (_placed(row, where) for row in given
                if row.where in here or ((own or where == "SYMMETRIC") and place.sees(row, row.max_ranks or _MOST_RANKS)))


def _placed(row: Row, where: str) -> Row:
    """In another section."""
    return row._replace(where=_EVEN if row.where == _EVEN and where == "HOSTS" else where)


def first(rows: Iterable[Row], place: Place, ranks: int, size: int) -> str:
    """The algorithm that the rows choose."""
    return next((row.name for row in rows if place.sees(row, ranks) and (row.up_to is None or size <= row.up_to)), "")


def _shortened(rows: list[Row], right: Callable[[list[Row]], bool]) -> list[Row]:
    """The rows without redundant ones: removes rows as long as the choices stay right."""
    for number in range(len(rows)):
        less = rows[:number] + rows[number + 1 :]
        if right(less):
            return _shortened(less, right)
    return rows

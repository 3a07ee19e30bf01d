"""Selection files as the rows of collectives/table.h that make the same choices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from arraycomm.core.interface.tuning import Choice, Tuning

from .tune_choose import at

SOURCE = Path(__file__).resolve().parents[1] / "backends" / "engine" / "collectives" / "table.h"
# The sections of a kind's rows: what each counts for, and whose rows are seen there. Between hosts ("tcp") they go by what is
# known of other networks than the one measured.
_SECTIONS = {"symmetric": "SYMMETRIC", "shm": "ONE_HOST", "hosts": "HOSTS", "loopback": "NEAR"}
_EVEN = "EVEN_HOSTS"  # of section hosts, and not seen where hosts have different numbers of ranks: "uneven"
_SEEN = {"symmetric": ("SYMMETRIC", "ONE_HOST", "NEAR", "ANYWHERE"), "shm": ("ONE_HOST", "NEAR", "ANYWHERE"),
         "loopback": ("NEAR", "ANYWHERE"), "hosts": ("HOSTS", _EVEN, "ANYWHERE"), "uneven": ("HOSTS", "ANYWHERE"),
         "tcp": ("ANYWHERE",)}
_ROW = re.compile(r'^ROW\((\w+), "(\w+)", (\w+), (\w+), ([A-Z |]+|0), ([^,]+), (\d+)\)$', re.MULTILINE)
_UNITS = {"MiB": 20, "KiB": 10}
_ALWAYS = 2**64 - 1
_MOST_RANKS = 1024  # beyond which rows are not compared


class Row(NamedTuple):
    """A row as it stands in the source. max_ranks 0: any."""

    kind: str
    name: str
    function: str
    where: str
    does: str
    up_to: int
    max_ranks: int

    def __str__(self) -> str:
        return (f'ROW({self.kind.upper()}, "{self.name}", {self.function}, {self.where}, {self.does}, '
                f"{_bytes(self.up_to)}, {self.max_ranks})")

    def fits(self, transport: str, ranks: int, size: int) -> bool:
        seen = self.where in _SEEN[transport] or (self.where == "NEAR" and transport == "tcp" and ranks <= 2)
        return seen and size <= self.up_to and (not self.max_ranks or ranks <= self.max_ranks)


def source_rows() -> list[Row]:
    """Of the clone that this benchmark is in. Raises ValueError where there is none."""
    if not SOURCE.is_file():
        raise ValueError(f"--table needs a clone of arraycomm: there is no {SOURCE}")
    return [Row(kind.lower(), name, function, where, does, _number(up_to), int(ranks))
            for kind, name, function, where, does, up_to, ranks in _ROW.findall(SOURCE.read_text())]


def _number(text: str) -> int:
    if text == "ALWAYS":
        return _ALWAYS
    unit, number = text.rstrip(")").split("(") if "(" in text else ("", text)
    return int(number) << _UNITS.get(unit, 0)


def _bytes(number: int) -> str:
    if number == _ALWAYS:
        return "ALWAYS"
    for unit, shift in _UNITS.items():
        if number and number % (1 << shift) == 0:
            return f"{unit}({number >> shift})"
    return str(number)


def rows(choices: Sequence[Choice]) -> list[str]:
    """All rows, those of kinds without a choice as they are."""
    given = source_rows()
    made: list[str] = []
    for kind in dict.fromkeys(row.kind for row in given):
        own = [choice for choice in choices if choice.operation == kind and choice.transport in _SECTIONS]
        before = [row for row in given if row.kind == kind]
        made += map(str, derived(before, own) if own else before)
    return made


def derived(given: Sequence[Row], choices: Sequence[Choice]) -> list[Row]:
    """The fewest of a kind's rows, found by leaving out what changes nothing. For numbers of ranks that the choices say nothing
    about, what `given` says; several hosts then go by the links' rows as before."""
    tuned = Tuning("", "", {}, tuple(choices))
    made = [row for transport in _SECTIONS for row in _section(given, choices, transport)]
    sizes = sorted({0, *(size for row in made for size in (row.up_to, row.up_to + 1) if size <= _ALWAYS)})
    numbers = _numbers(made)

    def wanted(transport: str, ranks: int, size: int) -> str:
        picks = tuned.picks(given[0].kind, transport, ranks)
        return at(picks, size) if picks else _first(made if transport in ("hosts", "uneven") else given, transport, ranks, size)

    places = [(transport, ranks, size) for transport in _SEEN for ranks in numbers for size in sizes]
    expected = [wanted(*place) for place in places]
    return _shortened(made, lambda rows: [_first(rows, *place) for place in places] == expected)


def _section(given: Sequence[Row], choices: Sequence[Choice], transport: str) -> Iterator[Row]:
    """Rows that say what the choices say, then those that are there, for more ranks."""
    where = _SECTIONS[transport]
    models = {row.name: row for row in given}
    own = sorted((choice for choice in choices if choice.transport == transport), key=lambda choice: choice.ranks)
    for number, choice in enumerate(own):
        most = choice.ranks * 2
        if number + 1 < len(own):
            most = max(ranks for ranks in range(choice.ranks, most + 1) if ranks**2 <= choice.ranks * own[number + 1].ranks)
        for pick in choice.picks:
            yield _placed(models[pick.name], where)._replace(up_to=_ALWAYS if pick.up_to is None else pick.up_to, max_ranks=most)
    if transport == "loopback":  # the last section: its rows for everywhere stay that
        yield from (row for row in given if row.where in _SEEN[transport])
        return
    seen = _SEEN[transport] if own else (where, _EVEN) if where == "HOSTS" else (where,)
    yield from (_placed(row, where) for row in given if row.where in seen)


def _placed(row: Row, where: str) -> Row:
    """In another section."""
    return row._replace(where=_EVEN if row.where == _EVEN and where == "HOSTS" else where)


def _numbers(rows: Sequence[Row]) -> list[int]:
    """Numbers of ranks at which rows could part."""
    borders = {row.max_ranks for row in rows if row.max_ranks}
    return sorted({2, 3, _MOST_RANKS, *(number for border in borders for number in (border, border + 1) if number > 1)})


def _first(rows: Sequence[Row], transport: str, ranks: int, size: int) -> str:
    return next((row.name for row in rows if row.fits(transport, ranks, size)), "")


def _shortened(rows: list[Row], right: Callable[[list[Row]], bool]) -> list[Row]:
    """Without the rows that can go, until none can."""
    for number in range(len(rows)):
        less = rows[:number] + rows[number + 1 :]
        if right(less):
            return _shortened(less, right)
    return rows

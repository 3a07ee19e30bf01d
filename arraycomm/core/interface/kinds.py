"""The properties of each kind of operation: the engine's rows of operations.def."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from arraycomm._engine import ffi, lib


class Kind(NamedTuple):
    """A row. gives, gets: lib.ACOMM_ALL, _ROOT or _NOBODY; array: lib.ACOMM_WHOLE, _JOINS, _CUTS, _EXCHANGES or _MESSAGE;
    reduces: lib.ACOMM_OF_ALL, _INCLUSIVE, _EXCLUSIVE or 0."""

    number: int
    name: str
    gives: int
    gets: int
    array: int
    reduces: int

    @property
    def rooted(self) -> bool:
        return lib.ACOMM_ROOT in (self.gives, self.gets)

    @property
    def scans(self) -> bool:
        """Whether it is a prefix reduction: scan or exscan."""
        return bool(self.reduces > lib.ACOMM_OF_ALL)

    @property
    def message(self) -> bool:
        return bool(self.array == lib.ACOMM_MESSAGE)

    @property
    def cuts(self) -> bool:
        """The input has a block for every rank."""
        return self.array in (lib.ACOMM_CUTS, lib.ACOMM_EXCHANGES)

    @property
    def joins(self) -> bool:
        """The result has a block of every rank's."""
        return self.array in (lib.ACOMM_JOINS, lib.ACOMM_EXCHANGES)

    def has_part(self, who: int, rank: int, root: int) -> bool:
        """Whether this rank has an input (who: self.gives) or an output."""
        return who == lib.ACOMM_ALL or (who == lib.ACOMM_ROOT and rank == root)


def _row(number: int) -> Kind:
    row = lib.acomm_operations[number]
    return Kind(number, ffi.string(row.name).decode(), row.gives, row.gets, row.array, row.reduces)


KINDS: dict[str, Kind] = {row.name: row for row in map(_row, range(lib.ACOMM_KINDS))}  # in the order of their numbers
COLLECTIVES: frozenset[str] = frozenset(name for name, kind in KINDS.items() if not kind.message)
# The flight recorder's numbers: asynchronous kinds follow the engine's kinds.
RECORDED: tuple[str, ...] = (*KINDS, *("i" + name for name, kind in KINDS.items() if kind.message))


def parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], int]:
    """The names of a method's parameters, and the number of positional ones; both without self."""
    code = function.__code__
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount], code.co_argcount - 1

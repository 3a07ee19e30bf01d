"""Collective: what the harness must know of an operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..data import Source


@dataclass(frozen=True)
class Case:
    """One rank's view of one row. `count` is nccl-tests' count column; op is "" where nothing is reduced."""

    rank: int
    size: int
    count: int
    dtype: str
    op: str
    root: int

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.size))

    @property
    def is_root(self) -> bool:
        return self.rank == self.root


Call = Callable[[], Any]


class Shared(NamedTuple):
    """The array of an in-place call: its elements, and the runs of them that are input and output (None: no output)."""

    total: int
    x: tuple[int, int]
    out: tuple[int, int] | None


class Collective:
    """An operation. Sizes of rows are the whole array's, as nccl-tests counts them."""

    name = ""
    reduces = False  # has a redop
    rooted = False
    divided = False  # count is a rank's share: the whole array is size times that
    sized = True  # has data at all

    def given(self, case: Case) -> int:
        """Elements of this rank's input; 0: it has none, or only one that shows shape and dtype."""
        return case.count

    def sources(self, case: Case) -> list[Source] | None:
        """Where this rank's result comes from; None: it gets none."""
        raise NotImplementedError

    def shared(self, case: Case) -> Shared | None:
        """How input and output lie in one array; None: the operation has no such form."""
        return None

    def factor(self, size: int) -> float:
        """busbw / algbw: the part of the array that has to pass the busiest link."""
        return (size - 1) / size if self.divided else 1.0

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        """What is timed. x: this rank's input, a template where `given` is 0. out: None where results are new."""
        raise NotImplementedError

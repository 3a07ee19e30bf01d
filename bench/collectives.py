"""The benchmark's table of operations; a new operation is an entry of COLLECTIVES.

This module imports only NumPy (through data.py): the programs of peers/ use it under interpreters without arraycomm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .data import Source

Call = Callable[[], Any]


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


class Shared(NamedTuple):
    """The array of an in-place call: its length, and the ranges of it that are input and output (None: no output)."""

    total: int
    x: tuple[int, int]
    out: tuple[int, int] | None


@dataclass
class Collective:
    """An operation. Sizes of rows are the whole array's, as nccl-tests counts them.

    sources: the origin of this rank's result; None: it gets no result. call: what is timed, from (group, x, out, case, op): x is
    this rank's input, a template if `given` is 0, and out is None if results are new.
    """

    name: str
    sources: Callable[[Case], list[Source] | None]
    call: Callable[[Any, Any, Any, Case, Any], Call]
    reduces: bool = False  # has a redop
    rooted: bool = False
    divided: bool = False  # count is a rank's share: the whole array is `size` times as long
    splits: bool = False  # the input is the whole array, and each rank gets a share of it
    from_root: bool = False  # only the root has an input
    in_place: bool = False  # input and output may share one array
    sized: bool = True  # moves data
    twice: bool = False  # all data cross the most loaded link twice

    def given(self, case: Case) -> int:
        """Elements of this rank's input; 0: it has no input, or only a template of shape and dtype."""
        if self.from_root and not case.is_root:
            return 0
        return case.count * case.size if self.splits else case.count

    def shared(self, case: Case) -> Shared | None:
        """The layout of input and output in one array; None: the operation has no in-place form."""
        if not self.in_place:
            return None
        total = case.count * case.size if self.divided else case.count
        whole = (0, total)
        share = (case.rank * case.count, (case.rank + 1) * case.count) if self.divided else whole
        x, out = (whole, share) if self.splits else (share, whole)
        return Shared(total, x, None if self.sources(case) is None else out)

    def factor(self, size: int) -> float:
        """busbw / algbw: the fraction of the array that crosses the most loaded link."""
        return (1 + self.twice) * (size - 1) / size if self.divided or self.twice else 1.0


def _reduced(case: Case) -> list[Source]:
    return [Source(case.everyone, 0, case.count)]


def _gathered(case: Case) -> list[Source]:
    return [Source((rank,), 0, case.count) for rank in case.everyone]


def _scatter(group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
    if case.is_root:
        return lambda: group.scatter(x, case.root, out=out)
    return lambda: group.scatter(None, case.root, like=x if out is None else None, out=out)


def _sendrecv(group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
    """Every rank sends to the next rank and receives from the previous one, as nccl-tests' sendrecv."""
    following, previous = (case.rank + 1) % case.size, (case.rank - 1) % case.size
    into = {"like": x} if out is None else {"out": out}

    def exchange() -> Any:
        sending = group.isend(x, following)
        received = group.recv(previous, **into)
        sending.wait()
        return received.array

    return exchange


COLLECTIVES = {collective.name: collective for collective in (
    Collective("all_reduce", _reduced, lambda group, x, out, case, op: lambda: group.all_reduce(x, op, out=out),
               reduces=True, in_place=True, twice=True),
    Collective("reduce", lambda case: _reduced(case) if case.is_root else None,
               lambda group, x, out, case, op: lambda: group.reduce(x, case.root, op, out=out),
               reduces=True, rooted=True, in_place=True),
    Collective("broadcast", lambda case: [Source((case.root,), 0, case.count)],
               lambda group, x, out, case, op: lambda: group.broadcast(x, case.root, out=out),
               rooted=True, from_root=True, in_place=True),
    Collective("all_gather", _gathered, lambda group, x, out, case, op: lambda: group.all_gather(x, out=out),
               divided=True, in_place=True),
    Collective("gather", lambda case: _gathered(case) if case.is_root else None,
               lambda group, x, out, case, op: lambda: group.gather(x, case.root, out=out),
               rooted=True, divided=True, in_place=True),
    Collective("scatter", lambda case: [Source((case.root,), case.rank * case.count, case.count)], _scatter,
               rooted=True, divided=True, splits=True, from_root=True),
    Collective("reduce_scatter", lambda case: [Source(case.everyone, case.rank * case.count, case.count)],
               lambda group, x, out, case, op: lambda: group.reduce_scatter(x, op, out=out),
               reduces=True, divided=True, splits=True, in_place=True),
    Collective("scan", lambda case: [Source(case.everyone[: case.rank + 1], 0, case.count)],
               lambda group, x, out, case, op: lambda: group.scan(x, op, out=out), reduces=True, in_place=True),
    Collective("exscan", lambda case: [Source(case.everyone[: case.rank], 0, case.count)],
               lambda group, x, out, case, op: lambda: group.exscan(x, op, out=out), reduces=True, in_place=True),
    Collective("all_to_all", lambda case: [Source((rank,), case.rank * case.count, case.count) for rank in case.everyone],
               lambda group, x, out, case, op: lambda: group.all_to_all(x, out=out), divided=True, splits=True),
    Collective("sendrecv", lambda case: [Source(((case.rank - 1) % case.size,), 0, case.count)], _sendrecv),
    Collective("barrier", lambda case: None, lambda group, x, out, case, op: group.barrier, sized=False),
)}

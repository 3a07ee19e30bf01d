"""How every collective begins: its group, whether this rank takes part, and what a coalescing manager holds back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.joined import update
from arraycomm.core.arrays.types import ReduceOp
from arraycomm.core.base.record import Record
from arraycomm.core.base.typed import Any
from arraycomm.core.group.group import Group

from ..process_groups.process_group import ProcessGroup
from ..process_groups.world import member, state
from .work import Several, Work, ended

current: Any = state  # for plain calls, current.default.plain._plain_all_reduce(...): there may be neither the one nor the other.
# What these do not take the slow path does, which finds out what is the matter.
_SMALL = 1 << 16  # bytes: above, an operation of its own costs less than copying into a common one and back
_LEVEL = 4  # frames from world.member() to who called the function that calls entered()


def entered(group: Any, what: str, level: int = _LEVEL) -> ProcessGroup | None:
    """The group of a call; None, after a warning, for ranks outside. What a coalescing manager holds back goes first."""
    pg = member(group, what, level)
    if pg is not None and pg.collected:
        run_held(pg)
    return pg


class Held(Record):
    """One collective. start(async_op=) runs it; settle() brings the result to where it belongs; reduces: an all_reduce's."""

    start: Callable[..., Any]
    array: Any
    settle: Callable[[], Any] | None = None
    reduces: tuple[Group, Buffer, ReduceOp] | None = None


class HeldWork:
    """The Work of an asynchronous call inside a coalescing manager: only the manager itself can be waited for."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"Illegal to call {name} on the work of one collective inside a coalescing manager; call wait() on "
                         "the manager, after its `with` has ended")


def begin(pg: ProcessGroup, held: Held, async_op: bool) -> Any:
    """What the call returns: for an operation that has begun, or for one that a coalescing manager of the group holds back."""
    if pg.collected is None:
        return ended(held.start(async_op=async_op), async_op, (held.array,), held.settle)
    pg.collected.append(held)
    return HeldWork() if async_op else None


def run_held(pg: ProcessGroup, async_op: bool = False) -> Work | None:
    """Carries out all that is held back, in order."""
    collected = pg.collected or []
    waiting = list(collected)
    collected.clear()  # no other list: a call with a timeout of its own comes by a copy of the group, which shares this one
    return start_all(waiting, async_op)


def start_all(waiting: Sequence[Held], async_op: bool) -> Work | None:
    runs = [list(alike) for _, alike in groupby(waiting, _key)]
    if len(runs) > 1 and _meet(waiting):
        for run in runs[:-1]:  # to the end: what was joined is back in the caller's arrays only then
            _start(run, False)
        return _start(runs[-1], async_op)
    return _start(waiting, async_op)


def _start(waiting: Sequence[Held], async_op: bool) -> Work | None:
    settles: list[Callable[[], Any]] = [held.settle for held in waiting if held.settle is not None]
    pending = []
    for one in _combined(waiting):
        if one.settle is not None:
            settles.insert(0, one.settle)  # out of the common run first, then into strided arrays
        pending.append(one.start(async_op=async_op))

    def settle() -> None:
        for step in settles:
            step()

    return ended(Several(pending), async_op, [held.array for held in waiting], settle)


def _key(held: Held) -> tuple[Any, ...]:
    """All_reduces with the same one can be one operation."""
    if held.reduces is None:
        return (id(held),)
    core, place, reduction = held.reduces
    return (id(core), place.device_type, place.device_index, place.dtype, reduction)


def _meet(waiting: Sequence[Held]) -> bool:
    """Whether one may need what another has written: all_reduces in the same memory, or beside others, whatever theirs is."""
    reduced = sum(held.reduces is not None for held in waiting)
    return reduced > 0 and (reduced < len(waiting) or _share_memory(waiting))


def _combined(waiting: Sequence[Held]) -> Iterator[Held]:
    """Small all_reduces that follow each other as one. settle: of the common run only.

    Long ones too where arrays share memory: each is reduced as it was before all of them, as it is among small ones and in
    torch, and not once more what another one has written.
    """
    for _, alike in groupby(waiting, _key):
        run = list(alike)
        parts = [run] if _share_memory(run) else [list(part) for _, part in groupby(run, _joinable)]
        for held in parts:
            yield held[0]._replace(settle=None) if len(held) == 1 else _as_one(held)


def _joinable(held: Held) -> Any:
    """The same for those that are worth it, otherwise of this one alone."""
    return held.reduces is not None and held.reduces[1].nbytes <= _SMALL or id(held)


def _share_memory(waiting: Sequence[Held]) -> bool:
    """Whether some of the arrays that are reduced do."""
    reduced = [held.reduces[1] for held in waiting if held.reduces and held.reduces[1].nbytes]
    spans = sorted((place.address, place.address + place.nbytes) for place in reduced)
    return any(end > begin for (_, end), (begin, _) in pairwise(spans))


def _as_one(held: Sequence[Held]) -> Held:
    assert held[0].reduces is not None  # what is grouped reduces
    core, _, reduction = held[0].reduces
    whole, spread = update([one.reduces[1] for one in held if one.reduces is not None])
    return Held(partial(core.all_reduce, whole, reduction, out=whole), None, spread)

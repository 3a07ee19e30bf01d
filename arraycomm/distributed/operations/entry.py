"""The start of every collective: its group, this rank's membership, and the operations that a coalescing manager defers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.joined import update
from arraycomm.core.arrays.types import ReduceOp
from arraycomm.core.group.group import Group

from ..process_groups.process_group import ProcessGroup
from ..process_groups.world import member, state
from .work import Several, Work, ended

_Function = TypeVar("_Function", bound=Callable[..., Any])

current: Any = state  # for the fast path, current.default._plain._plain_all_reduce(...): `default` and `_plain` may be None.
# Calls that the fast path refuses go to the slow path, which raises the exact error.
_LEVEL = 4  # stack frames from world.member() to the caller of the function that calls entered()


def entered(group: Any, what: str, level: int = _LEVEL) -> ProcessGroup | None:
    """The group of a call; None, after a warning, for ranks outside. Operations deferred by a coalescing manager run first."""
    pg = member(group, what, level)
    if pg is not None and pg._collected and not pg._holds_all:
        run_held(pg)
    return pg


def operation(warning: str = "") -> Callable[[_Function], _Function]:
    """Decorates a function of a group: its `group` is the ProcessGroup, and entered; ranks outside get None. warning: of an older
    function, "{}" is its name."""

    def decorate(function: _Function) -> _Function:
        place = function.__code__.co_varnames.index("group")

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            if warning:
                warnings.warn(warning.format(function.__name__), FutureWarning, stacklevel=2)
            pg = entered(given[place] if len(given) > place else named.get("group"), function.__name__)
            if pg is None:
                return None
            if len(given) > place:
                return function(*given[:place], pg, *given[place + 1 :], **named)
            return function(*given, **{**named, "group": pg})

        return call  # type: ignore[return-value]

    return decorate


class Held(NamedTuple):
    """One deferred operation. start(async_op=) runs it; settle() copies the result into the arrays; reduces: set for an
    all_reduce."""

    start: Callable[..., Any]
    arrays: Sequence[Any]
    settle: Callable[[], Any] | None = None
    reduces: tuple[Group, Buffer, ReduceOp] | None = None


class HeldWork:
    """The Work of an asynchronous call inside a coalescing manager: only the manager itself can be waited for."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"Illegal to call {name} on the work of one collective inside a coalescing manager; call wait() on "
                         "the manager, after its `with` has ended")


def begin(pg: ProcessGroup, held: Held, async_op: bool, *, together: bool = False) -> Work | None:
    """The call's return value, for an operation that has begun, or for one that the group defers. together: a coalescing
    manager defers it."""
    if pg._collected is None or not (together or pg._holds_all):
        return ended(held.start(async_op=async_op), async_op, held.arrays, held.settle)
    pg._collected.append(held)
    work: Any = HeldWork() if async_op else None
    return work  # type: ignore[no-any-return]


def run_held(pg: ProcessGroup, async_op: bool = False) -> Work | None:
    """Runs all deferred operations, in order."""
    collected = pg._collected or []
    waiting = list(collected)
    collected.clear()  # in place: a call with its own timeout uses a copy of the group, which shares this list
    return start_all(waiting, async_op)


def start_all(waiting: Sequence[Held], async_op: bool) -> Work | None:
    """Starts the operations in order, run by run. A run waits for the previous run, whose results are in the arrays only then."""
    runs = [list(alike) for _, alike in groupby(waiting, _key)] or [[]]
    for run in runs[:-1]:
        _start(run, False)
    return _start(runs[-1], async_op)


def _start(run: Sequence[Held], async_op: bool) -> Work | None:
    reduced = [held.reduces for held in run if held.reduces is not None]
    steps = [held.settle for held in run]
    if len(reduced) > 1:  # if arrays share memory, each is reduced with its values from before the call, as in torch
        core, _, reduction = reduced[0]
        whole, spread = update([place for _, place, _ in reduced])
        pending = [core.all_reduce(whole, reduction, out=whole, async_op=async_op)]
        steps.insert(0, spread)  # first out of the joined buffer, then into strided arrays
    else:
        pending = [held.start(async_op=async_op) for held in run]

    def settle() -> None:
        for step in steps:
            if step is not None:
                step()

    return ended(Several(pending), async_op, [x for held in run for x in held.arrays], settle)


def _key(held: Held) -> tuple[Any, ...]:
    """The batching key: all_reduces with equal keys become one operation; other operations with equal keys need no wait."""
    if held.reduces is None:
        return () if held.settle is None else (id(held),)
    core, place, reduction = held.reduces
    return (id(core), place.device_type, place.device_index, place.dtype, reduction)

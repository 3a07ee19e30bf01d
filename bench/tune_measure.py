"""One rank's part of `arraycomm-bench tune`: every algorithm of an operation in turn, at every size, round after round.

All algorithms of a transport are groups of the same ranks, each with its algorithm set, so that they share processes, arrays and
whatever the machine does meanwhile. A round goes through all cells, in each of them there and back (A B C, C B A).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from arraycomm.core.interface import tuning

from .collectives import COLLECTIVES, Call, Case
from .harness import slowest
from .peers.protocol import IN_PLACE
from .tune_choose import Cell, at
from .worlds import environment

# transport -> ARRAYCOMM_TRANSPORT
_SETTINGS = {"shm": "shm", "symmetric": "shm", "loopback": "tcp", "tcp": "tcp", "hosts": "auto"}
_WIDTH = 4  # float32
_BATCH_US = 4000.0
_MOST_CALLS = 1000
_WARMUP = 6  # calls before the first timed batch
_HOPELESS = 2.5  # an algorithm slower than the best by this factor is not measured again
_NO_LIMIT = 2**64 - 1  # a limit that is none: an algorithm without one would not choose between one copy and two


@dataclass(frozen=True)
class Plan:
    """What to measure in one world."""

    operations: tuple[str, ...]
    transports: tuple[str, ...]
    sizes: tuple[int, ...]
    rounds: int
    cores: int  # that the ranks may use on a host


@dataclass
class _Runner:
    """An algorithm in a cell."""

    name: str
    group: Any
    call: Call
    calls: int = 1


@dataclass
class _Entry:
    cell: Cell
    runners: list[_Runner]


def measure(group: Any, plan: Plan) -> list[Cell]:
    """All cells that have a choice. Collective; every rank gets the same."""
    with ExitStack() as stack:
        entries = [entry for transport in plan.transports for entry in _entries(group, transport, plan, stack)]
        # Up and down through the sizes, so that short messages never come after long ones, which empty the caches; and where
        # ranks share cores, the scheduler favours the rank that ran less in a long one for many milliseconds.
        entries.sort(key=lambda entry: entry.cell.size)
        begin = perf_counter()
        for entry in entries:
            _size_up(group, entry)
        _say(group, f"{len(entries)} cells, sized up in {perf_counter() - begin:.1f} s")
        for number in range(plan.rounds):
            begin = perf_counter()
            for entry in entries[:: -1 if number % 2 == 0 else 1]:
                _round(group, entry)
            spent = perf_counter() - begin
            _say(group, f"round {number + 1} of {plan.rounds}: {spent:.1f} s, {spent * (plan.rounds - 1 - number):.0f} s to go")
        group.barrier()  # no rank closes a group while a peer still reads from it
    return [entry.cell for entry in entries]


def _say(group: Any, text: str) -> None:
    if group.rank == 0:
        print(f"# {group.size} ranks: {text}", file=sys.stderr, flush=True)


def _entries(group: Any, transport: str, plan: Plan, stack: ExitStack) -> Iterator[_Entry]:
    known = tuning.names(transport, library=group.backend == "mpi")
    candidates = {operation: known[operation] for operation in plan.operations}
    most = max(map(len, candidates.values()))
    contenders = [_contender(group, transport, candidates, place, max(plan.sizes), stack) for place in range(most)]
    for operation, names in candidates.items():
        if len(names) == 1:
            continue  # nothing to choose
        for case, size in _cases(group, operation, plan.sizes):
            runners = [_Runner(name, one, _call(one, arrays, operation, case))
                       for name, (one, arrays) in zip(names, contenders, strict=False)]
            yield _Entry(Cell(operation, transport, group.size, size, cores=plan.cores), runners)


def _cases(group: Any, operation: str, sizes: Sequence[int]) -> Iterator[tuple[Case, int]]:
    """Each size once, in whole elements per rank; with the bytes of the whole array."""
    collective = COLLECTIVES[operation]
    width = _WIDTH * (group.size if collective.divided else 1)
    for count in dict.fromkeys(max(1, size // width) for size in sizes) if collective.sized else (0,):
        yield Case(group.rank, group.size, count, "float32", "sum" if collective.reduces else "", 0), count * width


def _contender(group: Any, transport: str, candidates: dict[str, list[str]], place: int, size: int,
               stack: ExitStack) -> tuple[Any, tuple[Any, Any]]:
    """A group that runs algorithm number `place` of every operation, and arrays for it."""
    told = ",".join(f"{operation}={names[place]}:{_NO_LIMIT}" for operation, names in candidates.items() if place < len(names))
    with environment({"ARRAYCOMM_TRANSPORT": _SETTINGS[transport], "ARRAYCOMM_ALGORITHM": told}):
        made = stack.enter_context(group.split(0))
    count = max(size // _WIDTH, group.size)
    make: Callable[..., Any] = made.empty if transport == "symmetric" else np.empty
    x, out = make((count,), "float32"), make((count,), "float32")
    for array in (x, out):
        array.fill(0)  # repeated sums stay 0, and the pages are faulted in
    return made, (x, out)


def _call(group: Any, arrays: tuple[Any, Any], operation: str, case: Case) -> Call:
    collective = COLLECTIVES[operation]
    if not collective.sized:
        return collective.call(group, None, None, case, None)
    x = arrays[0][: collective.given(case) or case.count]
    sources = collective.sources(case)
    out = None if sources is None else arrays[1][: sum(source.length for source in sources)]
    return collective.call(group, x, x if operation in IN_PLACE else out, case, "sum" if collective.reduces else None)


def _batch(group: Any, runner: _Runner) -> float:
    """Microseconds per call of the slowest rank."""
    return slowest(group, runner.group, runner.call, runner.calls) / runner.calls / 1e3


def _size_up(group: Any, entry: _Entry) -> None:
    """Sizes the batches, and drops algorithms that are far slower than the best, but never the table's choice."""
    best = {}
    for runner in entry.runners:
        for _ in range(_WARMUP):
            runner.call()
        first = _batch(group, runner)
        runner.calls = int(max(1, min(20.0, _BATCH_US / first)))
        best[runner.name] = min(first, _batch(group, runner))
        runner.calls = int(max(1, min(_MOST_CALLS, _BATCH_US / best[runner.name])))
    cell, limit = entry.cell, _HOPELESS * min(best.values())
    own = at(tuning.shipped(cell.operation, cell.transport, cell.ranks, cell.dedicated), cell.size)
    entry.runners = [runner for runner in entry.runners if best[runner.name] <= limit or runner.name == own]


def _round(group: Any, entry: _Entry) -> None:
    times: dict[str, list[float]] = {}
    _batch(group, entry.runners[0])  # not counted: the first batch of a cell bears the state that the previous cell left
    for runner in (*entry.runners, *entry.runners[::-1]):
        runner.call()  # brings its code and data back
        times.setdefault(runner.name, []).append(_batch(group, runner))
    entry.cell.rounds.append({name: sum(both) / 2 for name, both in times.items()})

"""One rank's part of a run: every operation, dtype, reduction, root and size in turn."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from arraycomm.core.arrays import types

from .collectives import COLLECTIVES, Call, Case, Collective, Shared
from .data import PREMUL_FACTOR, Array, count_wrong, numpy_dtype, poison, values, why_not
from .frameworks import NumpyArrays
from .harness import Plan, Timing, measure, over_ranks
from .options import sizes


@dataclass(frozen=True)
class Cell:
    """One placement's figures. Bandwidths in GB/s; wrong: elements over all ranks, None when not checked."""

    timing: Timing
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class Row:
    """One line of the table. size in bytes; root -1 where there is none; in_place None where it has no such form."""

    operation: str
    size: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place: Cell
    in_place: Cell | None

    def cells(self) -> list[tuple[str, Cell]]:
        both = (("out-of-place", self.out_of_place), ("in-place", self.in_place))
        return [(placement, cell) for placement, cell in both if cell is not None]


@dataclass(frozen=True)
class Step:
    """A table's worth of rows: all but the size."""

    operation: str
    dtype: str
    op: str
    root: int
    counts: tuple[int, ...]


def steps(options: argparse.Namespace, size: int, framework: NumpyArrays) -> tuple[list[Step], list[str]]:
    """The steps for a world of `size` ranks, and the skipped combinations with their reasons. ValueError if there are none."""
    made: list[Step] = []
    skipped: dict[str, list[str]] = {}
    for name in options.operations:
        collective = COLLECTIVES[name]
        for dtype in options.dtypes if collective.sized else ("",):
            for op in options.ops if collective.reduces else ("",):
                reason = _obstacle(dtype, op, framework)
                if reason is not None:
                    skipped.setdefault(reason, []).append(dtype)
                    continue
                counts = _counts(options, collective, dtype, size)
                made += [Step(name, dtype, op, root, counts) for root in _roots(options, collective, size)]
    reasons = [f"{reason}: {', '.join(dict.fromkeys(dtypes))}" for reason, dtypes in skipped.items()]
    if not made:
        raise ValueError("nothing to measure: " + "; ".join(reasons))
    return made, reasons


def _obstacle(dtype: str, op: str, framework: NumpyArrays) -> str | None:
    if not dtype:
        return None
    return framework.why_not(dtype) or (why_not(dtype, op) if op else None)


def _roots(options: argparse.Namespace, collective: Collective, size: int) -> list[int]:
    if not collective.rooted:
        return [-1]
    if options.root >= size:
        raise ValueError(f"-r {options.root} is not a rank of a world of {size}: the last is {size - 1}")
    return list(range(size)) if options.root < 0 else [options.root]


def _counts(options: argparse.Namespace, collective: Collective, dtype: str, size: int) -> tuple[int, ...]:
    """The count column: a whole number of elements per rank, at least one, each once."""
    if not collective.sized:
        return (0,)
    width = numpy_dtype(dtype).itemsize * (size if collective.divided else 1)
    return tuple(dict.fromkeys(max(1, bytes_ // width) for bytes_ in sizes(options)))


def rows(group: Any, step: Step, options: argparse.Namespace, framework: NumpyArrays) -> Iterator[Row]:
    """Measures a step. Collective; every rank gets the same rows."""
    collective = COLLECTIVES[step.operation]
    plan = Plan(options.calls, options.batches, options.warmup, options.average, options.percentiles)
    for count in step.counts:
        case = Case(group.rank, group.size, count, step.dtype, step.op, step.root)
        bench = _Bench(group, collective, case, framework, plan, options.checks if collective.sized else 0)
        cell = bench.out_of_place()
        shared = None if framework.immutable else collective.shared(case)
        yield Row(step.operation, bench.bytes, count, step.dtype, step.op, step.root, cell,
                  None if shared is None else bench.in_place(shared))


class _Bench:
    """One rank, one row."""

    def __init__(self, group: Any, collective: Collective, case: Case, framework: NumpyArrays, plan: Plan,
                 checks: int) -> None:
        self.group, self.collective, self.case, self.framework = group, collective, case, framework
        self.plan, self.checks = plan, checks
        self.op = _reduction(case.op)
        self.found = collective.sources(case)
        width = numpy_dtype(case.dtype).itemsize if collective.sized else 0
        self.bytes = case.count * width * (case.size if collective.divided else 1)

    def out_of_place(self) -> Cell:
        x = self._input()

        def call() -> Call:  # each time another output: a previously correct one would hide a call that writes nothing
            return self.collective.call(self.group, x, self._output(), self.case, self.op)

        return self._cell(call(), lambda: call()())

    def in_place(self, shared: Shared) -> Cell:
        # Zeros stay zeros: repeated sums of anything else would run into infinities, which some kernels find slow.
        call, _ = self._in_place_call(shared, np.zeros(shared.total, numpy_dtype(self.case.dtype)))

        def result() -> Any:
            host = poison(shared.total, self.case.dtype)
            if self.collective.given(self.case):
                host[slice(*shared.x)] = self._values(shared.x[1] - shared.x[0])
            call, out = self._in_place_call(shared, host)
            result = call()
            return result if out is None else out

        return self._cell(call, result)

    def _in_place_call(self, shared: Shared, host: Array) -> tuple[Call, Any]:
        """The call, and the array that it writes."""
        array = self.framework.array(host)
        whole = (0, shared.total)
        x, out = (part and (array if part == whole else array[slice(*part)]) for part in (shared.x, shared.out))
        return self.collective.call(self.group, x, out, self.case, self.op), out

    def _cell(self, call: Call, result: Callable[[], Any]) -> Cell:
        """Times the call, then checks results of calls with arrays of their own."""
        timing = measure(self.group, call, self.plan)
        wrong = sum(self._wrong(result()) for _ in range(self.checks))
        total = int(over_ranks(self.group, np.array([wrong])).sum()) if self.checks else None
        algbw = self.bytes / timing.time / 1e3 if timing.time else 0.0
        return Cell(timing, algbw, algbw * self.collective.factor(self.case.size), total)

    def _input(self) -> Any:
        case = self.case
        if not self.collective.sized:
            return None
        given = self.collective.given(case)
        if given == 0:  # only shows shape and dtype
            return self.framework.array(np.zeros(case.count, numpy_dtype(case.dtype)))
        return self.framework.array(self._values(given))

    def _values(self, count: int) -> Array:
        return values(self.case.dtype, self.case.op, self.case.rank, self.case.size, 0, count)

    def _output(self) -> Any:
        if self.found is None:
            return None
        return self.framework.poisoned(sum(source.length for source in self.found), self.case.dtype)

    def _wrong(self, result: Any) -> int:
        if self.found is None:
            return int(result is not None)
        return count_wrong(self.framework.host(result), self.found, self.case.dtype, self.case.op, self.case.size)


def _reduction(op: str) -> types.ReduceOp | None:
    if not op:
        return None
    return types.premul_sum(PREMUL_FACTOR) if op == "premul_sum" else types.reduce_op(op)

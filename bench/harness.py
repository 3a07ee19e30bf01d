"""The timing of a call: batches that all ranks begin together, the slowest rank's time per call, the median of the batches.

Single calls are timed separately, for the percentiles: otherwise the cost of reading the clock would be part of every
figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter_ns
from typing import Any

import numpy as np

from .data import Array

_BATCH_NS = 20_000_000  # the duration of a batch if the number of calls is not given
_MOST_CALLS = 1000
_SINGLE_CALLS = 200  # p99 needs 100 at least
_SINGLE_NS = 200_000_000


@dataclass(frozen=True)
class Plan:
    """The amount of measuring. calls 0: as many as fill a batch. average: 0 rank 0, 1 mean, 2 min, 3 max over ranks."""

    calls: int = 0
    batches: int = 5
    warmup: int = 5
    average: int = 3
    percentiles: bool = False


@dataclass(frozen=True)
class Timing:
    """Microseconds per call: the median batch, the fastest and slowest batch, and percentiles of single calls."""

    time: float
    low: float
    high: float
    calls: int
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


def over_ranks(group: Any, own: Array) -> Array:
    """Every rank's row: (size, ...). The measurements are exchanged over the group itself."""
    if group.size == 1:
        return own[np.newaxis]
    gathered: Array = group.all_gather(np.ascontiguousarray(own), form="stack")
    return gathered


def measure(group: Any, call: Callable[[], Any], plan: Plan) -> Timing:
    """Times a call that every rank of the group makes together. Collective: all ranks get the same Timing."""
    for _ in repeat(None, plan.warmup):
        call()
    # Sized by the slowest rank, so that every rank makes the same number of calls.
    calls = plan.calls or filling(lambda number: slowest(group, group, call, number))
    own = np.array([batch(group, call, calls) for _ in range(plan.batches)], dtype=np.float64)
    batches = _combine(over_ranks(group, own), plan.average) / calls / 1e3
    middle, low, high = statistics.median(batches), float(batches.min()), float(batches.max())
    if not plan.percentiles:
        return Timing(middle, low, high, calls)
    singles = _singles(group, call, middle * 1e3, plan.average)
    p50, p95, p99 = (float(p) for p in np.percentile(singles, (50, 95, 99), method="inverted_cdf") / 1e3)
    return Timing(middle, low, high, calls, p50, p95, p99)


def batch(group: Any, call: Callable[[], Any], calls: int) -> int:
    """This rank's nanoseconds for `calls` calls, begun when every rank was ready."""
    group.barrier()
    begin = perf_counter_ns()
    for _ in repeat(None, calls):
        call()
    return perf_counter_ns() - begin


def slowest(world: Any, group: Any, call: Callable[[], Any], calls: int) -> int:
    """Nanoseconds of a batch on the slowest rank. Collective: all ranks get the same, over `world`, which has the same ranks."""
    return int(over_ranks(world, np.array([batch(group, call, calls)])).max())


def filling(batch: Callable[[int], int], most: int = _MOST_CALLS) -> int:
    """How many calls fill a batch, `most` at most; batch(calls) gives nanoseconds. The trials grow: first calls are slow."""
    calls = 1
    while True:
        fitting = calls * _BATCH_NS // max(batch(calls), 1)
        if fitting <= calls * 4 and calls < most:
            # Measured again: the rank may have been preempted, and a batch of a few short calls would have no significance.
            fitting = max(fitting, calls * _BATCH_NS // max(batch(calls), 1))
        if fitting <= calls * 4 or calls >= most:
            return max(1, min(fitting, most))
        calls = min(fitting, calls * 10, most)


def _singles(group: Any, call: Callable[[], Any], estimate_ns: float, average: int) -> Array:
    count = int(max(20, min(_SINGLE_CALLS, _SINGLE_NS // max(estimate_ns, 1))))
    own = np.empty(count)
    group.barrier()
    for index in range(count):
        begin = perf_counter_ns()
        call()
        own[index] = perf_counter_ns() - begin
    return _combine(over_ranks(group, own), average)


def _combine(ranks: Array, average: int) -> Array:
    if average == 0:
        return np.asarray(ranks[0])
    combined: Array = (ranks.mean, ranks.min, ranks.max)[average - 1](axis=0)
    return combined

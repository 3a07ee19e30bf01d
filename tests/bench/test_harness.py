"""The arithmetic of timing, with a clock of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arraycomm.bench import harness
from arraycomm.bench.harness import Plan, measure


class Alone:
    """A world of one."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1


class Clock:
    """Every call of the measured function takes the next of `steps` nanoseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
        self.now, self.steps, self.calls = 0, steps, 0
        monkeypatch.setattr(harness, "perf_counter_ns", lambda: self.now)

    def call(self) -> None:
        self.now += self.steps[self.calls % len(self.steps)]
        self.calls += 1


def test_median_batch_and_its_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1000, 1000, 2000, 2000, 9000, 9000)
    timing = measure(Alone(), clock.call, Plan(calls=2, batches=3, warmup=0))
    assert (timing.time, timing.low, timing.high, timing.calls) == (2.0, 1.0, 9.0, 2)
    assert timing.p50 is None


def test_warmup_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 5000, 5000, 1000, 1000)
    assert measure(Alone(), clock.call, Plan(calls=2, batches=1, warmup=2)).time == 1.0


def test_every_batch_begins_at_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Alone()
    measure(group, Clock(monkeypatch, 1000).call, Plan(calls=1, batches=4, warmup=0))
    assert group.barriers == 4


@pytest.mark.parametrize(("step", "calls"), [(100, 1000), (100_000, 200), (50_000_000, 1)])
def test_calls_fill_a_batch(monkeypatch: pytest.MonkeyPatch, step: int, calls: int) -> None:
    assert measure(Alone(), Clock(monkeypatch, step).call, Plan(batches=1, warmup=0)).calls == calls


@pytest.mark.parametrize("disturbed", [0, 1, 11])
def test_a_disturbed_trial_does_not_make_batches_small(monkeypatch: pytest.MonkeyPatch, disturbed: int) -> None:
    clock = Clock(monkeypatch, *(30_000_000 if call == disturbed else 100_000 for call in range(10_000)))
    assert measure(Alone(), clock.call, Plan(batches=1, warmup=0)).calls == 200


def test_percentiles_of_single_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, *range(1000, 201_000, 1000))
    timing = measure(Alone(), clock.call, Plan(calls=200, batches=1, warmup=0, percentiles=True))
    assert (timing.p50, timing.p95, timing.p99) == (100.0, 190.0, 198.0)


@pytest.mark.parametrize(("average", "expected"), [(0, 1), (1, 2), (2, 1), (3, 3)])
def test_average_over_ranks(average: int, expected: int) -> None:
    assert harness._combine(np.array([[1.0], [3.0]]), average) == [expected]


def test_all_ranks_get_the_same_figures(run_world: Callable[..., list[Any]]) -> None:
    timings = run_world(3, lambda group: measure(group, group.barrier, Plan(percentiles=True)))
    assert timings[0] == timings[1] == timings[2]

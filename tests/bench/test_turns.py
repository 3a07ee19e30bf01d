"""Whose turn it is, and what a cell makes of the times; contenders are lists of times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arraycomm.bench.drive import Contender, ContenderFailed
from arraycomm.bench.peers.protocol import OPERATIONS
from arraycomm.bench.results import Timing
from arraycomm.bench.turns import Task, Turns

Log = list[tuple[str, str]]  # who was asked what
TASK = Task("all_reduce", 8, "float32")
PLENTY = 1 << 40


class Listed:
    """Two ranks; every batch takes the next of `times` (us per call) on the slower one. A time of None is a failure."""

    def __init__(self, name: str, log: Log, times: Iterable[float | None], wrong: int = 0,
                 operations: Sequence[str] = OPERATIONS, dtypes: Sequence[str] = ("float32",)) -> None:
        self.name, self.log, self.times, self.wrong, self.size = name, log, iter(times), wrong, 2
        self.kind = SimpleNamespace(operations=operations, dtypes=dtypes)

    def ask(self, what: str, *arguments: Any) -> Any:
        self.log.append((self.name, what))
        if what == "prepare":
            return [0, self.wrong]
        if what in ("release", "arm"):
            return [0, 0]
        time = next(self.times)
        if time is None:
            raise ContenderFailed(f"{self.name} is gone")
        calls = arguments[0]
        if what == "run":
            return [int(time * calls * 500), int(time * calls * 1000)]
        return [[int(time * 500)] * calls, [int(time * 1000)] * calls]


def batches(log: Log) -> list[str]:
    return [name for name, what in log if what in ("run", "singles")]


def long(times: Iterable[float | None]) -> list[float | None]:
    """Those of a contender whose calls fill a batch each: the first two find that out."""
    return [20_000, 20_000, *times]


def run(*contenders: Listed, rounds: int, task: Task = TASK,
        available: int = PLENTY) -> tuple[dict[str, Timing], list[tuple[str, str]], Turns]:
    failed: list[tuple[str, str]] = []
    turns = Turns([cast(Contender, contender) for contender in contenders], rounds,
                  lambda contender, error: failed.append((contender.name, str(error))))
    return turns.cell(task, available), failed, turns


def test_turns_are_there_and_back() -> None:
    log: Log = []
    run(*(Listed(name, log, long([1] * 4)) for name in "abc"), rounds=2)
    assert batches(log)[6:] == list("abccba" * 2)


def test_a_round_is_a_pair_of_batches() -> None:
    timings, _, _ = run(Listed("a", [], long([10, 10, 10, 30, 10, 10])), rounds=3)
    assert timings["a"].rounds == ((10, 10), (10, 30), (10, 10))
    assert (timings["a"].time, timings["a"].calls) == (10, 1)
    assert timings["a"].p50 == 10 and timings["a"].p99 == pytest.approx(30, abs=1.5)


def test_short_calls_are_timed_in_batches_and_singly_after_them() -> None:
    log: Log = []
    # 1, 10, 100, 1000, 10,000 and again 10,000 calls; then two batches and the single calls.
    timings, _, _ = run(Listed("a", log, [1, 1, 1, 1, 1, 1, 1, 2, 7]), rounds=1)
    assert [what for _, what in log] == ["prepare", *["run"] * 8, "singles", "release"]
    assert timings["a"].calls == 20_000 and timings["a"].rounds == ((1, 2),)
    assert timings["a"].p50 == timings["a"].p99 == 7


def test_one_that_fails_is_left_out_and_the_others_go_on() -> None:
    good, bad = Listed("good", [], long([1] * 4)), Listed("bad", [], long([1, None]))
    timings, failed, turns = run(good, bad, rounds=2)
    assert list(timings) == ["good"] and failed == [("bad", "bad is gone")]
    assert [contender.name for contender in turns.contenders] == ["good"]


def test_only_those_that_offer_it_take_part() -> None:
    some = Listed("some", [], long([1] * 2), operations=("all_reduce",))
    every = Listed("every", [], [20_000] * 10, dtypes=("float32", "bfloat16"))
    timings, _, _ = run(some, every, rounds=1, task=Task("all_gather", 8, "float32"))
    assert list(timings) == ["every"]
    timings, _, _ = run(some, every, rounds=1, task=Task("all_reduce", 8, "bfloat16"))
    assert list(timings) == ["every"]


def test_a_barrier_has_no_dtype() -> None:
    assert list(run(Listed("a", [], long([1] * 2)), rounds=1, task=Task("barrier", 0, "bfloat16"))[0]) == ["a"]


@pytest.mark.parametrize(("operation", "memory"), [
    ("all_reduce", 4000), ("broadcast", 4000), ("sendrecv", 8000), ("all_gather", 5000), ("reduce_scatter", 5000),
    ("all_to_all", 8000)])
def test_memory_of_a_cell(operation: str, memory: int) -> None:
    assert Task(operation, 1000, "float32").memory(4) == memory


def test_where_memory_is_short_arrays_exist_for_a_turn_alone() -> None:
    log: Log = []
    run(*(Listed(name, log, long([1] * 2)) for name in "ab"), rounds=1, task=Task("all_reduce", 100, "float32"), available=600)
    turn = ["arm", "singles", "release"]
    assert [what for name, what in log if name == "a"] == ["prepare", "run", "run", "release", *turn, *turn, "arm", "release"]


def test_what_does_not_fit_at_all_is_refused() -> None:
    with pytest.raises(MemoryError, match="needs 512 MiB of arrays, 1000 MiB are available"):
        run(Listed("a", [], []), rounds=1, task=Task("all_reduce", 256 << 20, "float32"), available=1000 << 20)

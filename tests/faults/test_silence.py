"""Ranks that are there and do not answer: stopped, busy, or never coming."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from . import checks
from .job import Job

Jobs = Callable[..., Job]

SILENCE = 1.0  # s
QUICK = {"ARRAYCOMM_SILENCE": str(SILENCE), "ARRAYCOMM_HEARTBEAT": "0.2"}


@pytest.mark.parametrize("size", [2, 3])
def test_stopped(job: Jobs, transport: str, size: int) -> None:
    """Unresponsive for all others; when it goes on it learns that it has no part in the group any more."""
    ranks = job(size, transport, QUICK)
    others = [rank for rank in range(size) if rank != 1]
    ranks.begin("cycle_forever", counts=(5000,))
    ranks.answers()
    since = ranks.signal(1, signal.SIGSTOP)
    checks.lost(ranks.answers(others), ranks, 1, "unresponsive", since, within=1.2 * SILENCE)
    ranks.signal(1, signal.SIGCONT)
    resumed = ranks.answer(1)
    # On its own clock no time has passed; whichever it notices first, it is out.
    assert resumed.error in ("Aborted", "PeerLost"), resumed
    if resumed.error == "Aborted":
        assert "declared lost by the others" in resumed.text, resumed
    checks.clean(ranks, range(size))


def test_stopped_outside_of_operations(job: Jobs, transport: str) -> None:
    """A rank that is stopped between two operations cannot come back unnoticed."""
    ranks = job(3, transport, QUICK)
    since = ranks.signal(1, signal.SIGSTOP)
    ranks.begin("total", [0, 2])
    checks.lost(ranks.answers([0, 2]), ranks, 1, "unresponsive", since, within=1.2 * SILENCE)
    ranks.signal(1, signal.SIGCONT)
    time.sleep(0.5)  # it hears of it in its own time
    ranks.begin("total", [1])
    resumed = ranks.answer(1)
    assert resumed.error == "Aborted" and "declared lost by the others: unresponsive" in resumed.text, resumed
    checks.clean(ranks, range(3))


@pytest.mark.parametrize("stopped", [0, 1])
def test_stopped_where_the_root_runs_ahead(job: Jobs, stopped: int) -> None:
    """The root finds no slot, or the readers wait for it."""
    ranks = job(3, "shm", QUICK)
    others = [rank for rank in range(3) if rank != stopped]
    since = ranks.signal(stopped, signal.SIGSTOP)
    ranks.begin("broadcast_forever", others, root=0)
    ranks.answers(others)
    checks.lost(ranks.answers(others), ranks, stopped, "unresponsive", since, within=1.2 * SILENCE)
    ranks.signal(stopped, signal.SIGCONT)
    checks.clean(ranks, others)


def test_stopped_shortly(job: Jobs, transport: str) -> None:
    ranks = job(3, transport, QUICK)
    ranks.begin("cycle_for", seconds=1.2)
    for rank in range(3):
        ranks.signal(rank, signal.SIGSTOP)
        time.sleep(SILENCE / 3)
        ranks.signal(rank, signal.SIGCONT)
    assert all(answer.value for answer in ranks.answers().values())


def test_all_stopped(job: Jobs, transport: str) -> None:
    """A suspended job, or machine: nobody is blamed afterwards."""
    ranks = job(3, transport, QUICK)
    ranks.begin("cycle_for", seconds=1.0)
    for rank in range(3):
        ranks.signal(rank, signal.SIGSTOP)
    time.sleep(2 * SILENCE)
    for rank in range(3):
        ranks.signal(rank, signal.SIGCONT)
    answers = ranks.answers()
    assert not any(answer.error for answer in answers.values()), "\n".join(answer.text for answer in answers.values())


def test_gil_held(job: Jobs, transport: str) -> None:
    """Heartbeats do not need the interpreter."""
    ranks = job(2, transport, QUICK)
    ranks.begin("announced_total", [0])
    ranks.answer(0)
    assert ranks.call("hold_gil", [1], seconds=2 * SILENCE)[1] >= 2 * SILENCE
    ranks.call("total", [1])
    assert ranks.answer(0).value == 2


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("absent", ["first", "last"])
def test_rank_that_never_comes(job: Jobs, transport: str, size: int, absent: str) -> None:
    ranks = job(size, transport)
    missing = 0 if absent == "first" else size - 1
    others = [rank for rank in range(size) if rank != missing]
    ranks.call("total")
    ranks.call("total")
    since = time.monotonic()
    ranks.begin("total", others, timeout=0.5)
    for answer in ranks.answers(others).values():
        assert answer.error == "CollectiveTimeout", answer
        checks.names(answer, ranks, missing)
        assert "all_reduce #3" in answer.text and "last seen in collective #2" in answer.text, answer.text
        assert 0.4 < answer.at - since < 1 + checks.SLACK
    ranks.begin("total", [missing])
    late = ranks.answer(missing)
    # Late by so little that it has not heard, it may still find all contributions in the shared memory.
    assert late.error == "CollectiveTimeout" or late.value == size, late
    checks.clean(ranks, range(size))


def test_message_that_never_comes(job: Jobs, transport: str) -> None:
    ranks = job(2, transport)
    ranks.begin("announced_recv", [0], source=1, timeout=0.3)
    ranks.answer(0)
    answer = ranks.answer(0)
    assert answer.error == "CollectiveTimeout" and " in recv of " in answer.text, answer
    checks.names(answer, ranks, 1)


def test_interrupted_system_calls(job: Jobs, transport: str) -> None:
    """Signals at 1 kHz, in every system call, change nothing."""
    ranks = job(3, transport)
    assert all(ran > 100 for ran in ranks.call("interrupt_storm", seconds=1.0).values())


def test_errors_are_of_ones_own_operation(job: Jobs, transport: str) -> None:
    """A rank whose operation ends by another one's timeout says what it did itself, and what the other waited for."""
    ranks = job(3, transport)
    ranks.begin("announced_recv", [1], source=2)
    ranks.begin("announced_total", [0], timeout=0.5)
    ranks.answers([0, 1])
    answers = ranks.answers([0, 1])
    assert all(answer.error == "CollectiveTimeout" for answer in answers.values()), answers
    assert "in all_reduce #1 of 1000 float64, sum after" in answers[0].text and "recv" not in answers[0].text, answers
    assert "rank 1 of 3 in group 'world' in recv of 4 float64 after" in answers[1].text, answers
    assert "until its timeout was over, in all_reduce #1 of 1000 float64, sum" in answers[1].text, answers


def test_two_operations_time_out_at_once(job: Jobs, transport: str) -> None:
    """Whoever comes first is told to the other: neither reports the other's operation as its own."""
    ranks = job(3, transport)
    ranks.begin("announced_recv", [1], source=2, timeout=0.5)
    ranks.begin("announced_total", [0], timeout=0.5)
    ranks.answers([0, 1])
    answers = ranks.answers([0, 1])
    assert "rank 0 of 3 in group 'world' in all_reduce #1 of 1000 float64, sum after" in answers[0].text, answers
    assert "rank 1 of 3 in group 'world' in recv of 4 float64 after" in answers[1].text, answers
    assert "no message" not in answers[0].text or "rank 1 " in answers[0].text and "in recv of 4" in answers[0].text, answers

"""What goes wrong inside compiled programs: the exceptions are ours, and nothing hangs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from ...faults import checks
from ...faults.job import Job, closed_jobs
from . import fault_tasks

Jobs = Callable[..., Job]


@pytest.fixture
def job() -> Iterator[Jobs]:
    yield from closed_jobs(partial(Job, tasks=fault_tasks))


@pytest.mark.parametrize("way", ["jit", "jax.jit"])
def test_a_rank_dies(job: Jobs, way: str) -> None:
    """While the others wait in the middle of a program."""
    ranks = job(3)
    assert ranks.call("total", limit=240) == dict.fromkeys(range(3), 30.0)
    ranks.begin("announced", [0, 1], way=way)
    ranks.answers([0, 1])
    time.sleep(0.1)  # into the program; where it has not come there yet, the same is seen
    since = ranks.kill(2)
    checks.lost(ranks.answers([0, 1]), ranks, 2, "process died", since, within=1)
    said = ranks.call("text_of", [0, 1])
    assert all("PeerLost" in text and "rank 2" in text for text in said.values()), said


@pytest.mark.parametrize("way", ["jit", "jax.jit"])
def test_ctrl_c_in_a_program_of_short_operations(job: Jobs, way: str) -> None:
    """It is answered between them, though no Python runs there, and the peer waits for the next one until the rank goes; or in
    one that waits for 50 ms, where processors are scarce, and the peer is told."""
    ranks = job(2)
    ranks.begin("many", way=way)
    ranks.answers(limit=240)
    time.sleep(0.5)  # into the program, which lasts much longer
    since = ranks.signal(0, signal.SIGINT)
    answer = ranks.answer(0)
    assert answer.error == "KeyboardInterrupt" and answer.at - since < 2, (answer, answer.at - since)
    since = ranks.kill(0)
    peer = ranks.answer(1)
    if peer.error == "Aborted":
        assert "rank 0 (host" in peer.text and "was interrupted by a signal" in peer.text, peer
    else:
        checks.lost({1: peer}, ranks, 0, "process died", since, within=1)


def test_the_group_is_closed(job: Jobs) -> None:
    said = job(2).call("closed", limit=240)
    assert all("group 'world': the group is closed" in text for text in said.values()), said


def test_the_group_is_closed_meanwhile(job: Jobs) -> None:
    ranks = job(2)
    ranks.begin("closed_while_inside")
    kind, said = ranks.answer(0, 60).value
    assert kind == "Aborted" and "closed" in said, said


def test_another_group_goes_on(job: Jobs) -> None:
    assert job(2).call("after_a_failure", limit=240) == {0: [20.0, 20.0], 1: [20.0, 20.0]}


def test_a_gradient_on_one_rank(job: Jobs) -> None:
    said = job(2).call("differentiated_by_one", limit=240)
    assert all("all_reduce" in text and "barrier" in text for texts in said.values() for text in texts), said
    assert [["belongs to a derivative" in text for text in said[rank]] for rank in (0, 1)] == [[True] * 3, [False] * 3], said


def test_wrong_calls(job: Jobs) -> None:
    said = job(2).call("wrong_calls", limit=240)[0]
    words = ("unknown reduction 'median'", "outside of compiled code", "take the min of where", "bor is defined for integers",
             "parts are even here: pad x", "root 7 is not a rank", "int4) is not supported", "each rank as source once",
             "got (0,) among them", "got 5 among them", "form must be", "it has one: group.core")
    expected = [word for word in words for _ in range(3)]  # by jax.jit, by jit and eagerly
    assert all(word in text for word, text in zip(expected, said, strict=True)), said

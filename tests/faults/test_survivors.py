"""Several ranks die at once, and the others make a group of themselves: as docs/semantics.md shows it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from .job import Job

Jobs = Callable[..., Job]


@pytest.mark.parametrize("size, victims", [(4, (1, 2)), (5, (0, 3)), (5, (1, 2, 4))])
def test_several_die_at_once(job: Jobs, transport: str, size: int, victims: tuple[int, ...]) -> None:
    ranks = job(size, transport)
    others = [rank for rank in range(size) if rank not in victims]
    ranks.begin("go_on", others)
    ranks.answers(others)
    for victim in victims:
        ranks.kill(victim)
    answers = ranks.answers(others)
    assert {rank: answer.value for rank, answer in answers.items()} == dict.fromkeys(others, [others, len(others)]), answers
    ranks.call("close_group", others)


@pytest.mark.parametrize("transport", ["shm"])
def test_survivors_who_have_heard_of_different_ranks(job: Jobs, transport: str) -> None:
    """Each asks for a group with one whose death it has not heard of, of which the other waits for nothing any more."""
    ranks = job(6, transport)
    ranks.signal(1, signal.SIGSTOP)
    ranks.signal(3, signal.SIGSTOP)
    for rank, known in ((0, [1]), (2, [3]), (5, [3]), (4, [1])):
        ranks.begin("go_on", [rank], known=known)
        ranks.answer(rank)
    ranks.kill(1)
    ranks.kill(3)
    answers = ranks.answers([0, 2, 4, 5])
    for answer in answers.values():
        assert answer.value == [[0, 2, 4, 5], 4], answers


@pytest.mark.parametrize("asking", [0, 3])
def test_a_member_dies_while_others_wait_for_the_group(job: Jobs, asking: int) -> None:
    """The one who makes the shared memory and one who gets it; the third rank does not come, as it has heard of the death."""
    ranks = job(4, "shm")
    ranks.begin("announced_subgroup", [asking], members=[0, 2, 3])
    ranks.answer(asking)
    ranks.kill(2)
    answer = ranks.answer(asking)
    assert answer.error == "PeerLost" and answer.ranks == (1,), answer
    assert "rank 1 (host" in answer.text and "process died" in answer.text and " of 3:" in answer.text


def test_peers_of_a_subgroup_are_numbered_in_it(job: Jobs) -> None:
    ranks = job(4, "shm")
    ranks.call("make_part", [1, 2, 3], members=[1, 2, 3])
    ranks.kill(2)
    for rank, answer in ranks.call("lost_of_part", [1, 3]).items():
        assert answer == ([1], [1]), rank

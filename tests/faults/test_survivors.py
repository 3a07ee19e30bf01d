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
    assert answer.error == "PeerLost" and answer.ranks == (2,), answer
    assert "rank 2 (host" in answer.text and "process died" in answer.text and " of 4:" in answer.text


def test_peers_are_numbered_in_the_group_that_was_called(job: Jobs, transport: str) -> None:
    """World rank 2 is rank 1 of the outer group and rank 2 of the inner ones."""
    ranks = job(4, transport)
    ranks.call("make_parts", outer=[3, 2, 1, 0], inner=[2, 0, 1])
    ranks.kill(2)
    for rank, answer in ranks.call("lost_of_parts", [1, 3]).items():
        assert len(answer) > 10
        for name, numbers in answer.items():
            assert numbers == [(1 if "outer" in name else 2,), (2,)], (rank, name, numbers)


def test_a_rank_that_dies_inside_split(job: Jobs) -> None:
    """After the exchange: who waits for the shared memory is told by the number in the group that is split."""
    ranks = job(4, "shm")
    ranks.call("make_parts", outer=[1, 0, 3, 2], inner=[0, 1, 2])
    ranks.begin("die_in_split", [3])
    for rank, answer in ranks.call("split_outer", [0, 1, 2]).items():
        assert answer == ([(2,), (3,)] if rank == 0 else None), (rank, answer)

"""Ranks die, and the others go on in a group of themselves: as docs/reference/ending.md shows it."""

from __future__ import annotations

import functools
import random
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import arraycomm
from arraycomm.core.bootstrap.store import HashStore

from ..threads import at_once
from . import survivors
from .job import Job, closed_jobs
from .shrinking import down_to_one

Jobs = Callable[..., Job]
WHERE = ({"transport": "shm", "hosts": ""}, {"transport": "tcp", "hosts": ""}, {"transport": "auto", "hosts": "two"})


@pytest.fixture
def job() -> Iterator[Jobs]:
    """job(size, transport, ...) -> Job."""
    yield from closed_jobs(functools.partial(Job, tasks=survivors))


@pytest.fixture(params=WHERE, ids=("shm", "tcp", "hosts"))
def where(request: pytest.FixtureRequest) -> dict[str, str]:
    return dict(request.param)


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


def test_survivors_who_have_heard_of_different_ranks(job: Jobs) -> None:
    """Each asks for a group with one whose death it has not heard of, of which the other waits for nothing any more."""
    ranks = job(6, "shm")
    ranks.signal(1, signal.SIGSTOP)
    ranks.signal(3, signal.SIGSTOP)
    for rank, known in ((0, [1]), (2, [3]), (5, [3]), (4, [1])):
        ranks.begin("go_on", [rank], known=known)
    ranks.kill(1)
    ranks.kill(3)
    others = [0, 2, 4, 5]
    ranks.answers(others)
    for answer in ranks.answers(others).values():
        assert answer.value == [others, 4], answer


def _shrunk(ranks: Job, others: list[int]) -> None:
    """What they told them to do ends so: their sum is the number of them."""
    answers = ranks.answers(others)
    assert {rank: answer.value for rank, answer in answers.items()} == dict.fromkeys(others, [*others, len(others)]), answers


def _announced(ranks: Job, task: str, rank: int, **parameters: object) -> None:
    ranks.begin(task, [rank], **parameters)
    ranks.answer(rank)


def test_shrinking_again_and_again(job: Jobs, where: dict[str, str]) -> None:
    """One dies before, one during it; then all are aborted, twice; then a rank has the new group when another one loses it."""
    ranks = job(6, where["transport"], of_rank=lambda rank: {"ARRAYCOMM_HOSTID": str(rank % 2)} if where["hosts"] else {})
    ranks.kill(5)
    _announced(ranks, "shrink", 0)
    _announced(ranks, "shrink", 3)
    ranks.kill(4)
    for rank in (1, 2):
        _announced(ranks, "shrink", rank)
    _shrunk(ranks, [0, 1, 2, 3])
    for aborts in (1, 2):  # the others are told of nothing else
        for rank in (0, 1, 2, 3):
            _announced(ranks, "shrink", rank, abort=rank == aborts)
        _shrunk(ranks, [0, 1, 2, 3])
    for rank in (0, 1, 2, 3):
        _announced(ranks, "shrink", rank, fails="PeerLost" if rank == 2 else "")
    _shrunk(ranks, [0, 1, 2, 3])
    ranks.kill(0)
    for rank in (1, 2, 3):
        _announced(ranks, "shrink", rank)
    _shrunk(ranks, [1, 2, 3])
    ranks.call("close_part", [2])  # the newest, and with it all of them
    for rank in (1, 3):
        _announced(ranks, "shrink", rank)
    _shrunk(ranks, [1, 3])
    ranks.call("close_part", [1, 3])
    assert ranks.call("is_closed", [1, 2, 3]) == dict.fromkeys((1, 2, 3), True)


def test_who_closed_the_group_is_gone(job: Jobs, transport: str) -> None:
    """A part of the world, whose ranks stay in the world: in good order, and by Ctrl-C inside shrink(), while others wait."""
    ranks = job(5, transport)
    ranks.call("begin_part", [4, 3, 2, 1], members=[4, 3, 2, 1])
    _announced(ranks, "shrink", 4)
    _announced(ranks, "shrink", 1)
    ranks.call("close_part", [3])
    _announced(ranks, "shrink", 2)
    answers = ranks.answers([4, 2, 1])
    assert all(answer.value == [4, 2, 1, 3] for answer in answers.values()), answers
    for rank in (1, 2, 4):
        _announced(ranks, "shrink", rank, fails="KeyboardInterrupt" if rank == 2 else "")
    assert ranks.answer(2).error == "KeyboardInterrupt"
    answers = ranks.answers([4, 1])
    assert all(answer.value == [4, 1, 2] for answer in answers.values()), answers
    ranks.begin("shrink", [2])
    ranks.answer(2)
    answer = ranks.answer(2)
    assert answer.error == "Aborted" and "is closed" in answer.text, answer
    assert ranks.call("total") is not None  # the world is as it was


def test_a_late_rank_finds_nobody(job: Jobs, transport: str) -> None:
    ranks = job(3, transport)
    for rank in (0, 2):
        _announced(ranks, "shrink", rank, timeout=1.0)
    for answer in ranks.answers([0, 2]).values():
        assert answer.error in ("CollectiveTimeout", "PeerLost"), answer
        assert answer.error == "PeerLost" or answer.ranks == (1,), answer
    assert ranks.call("is_closed", [0, 2]) == {0: True, 2: True}
    _announced(ranks, "shrink", 1)
    _shrunk(ranks, [1])


def test_a_rank_that_was_only_stopped(job: Jobs, transport: str) -> None:
    """The others hold it for dead, and go on; it learns so, in whatever it asks for."""
    ranks = job(4, transport, environ={"ARRAYCOMM_HEARTBEAT": "0.1", "ARRAYCOMM_SILENCE": "1"})
    ranks.signal(1, signal.SIGSTOP)
    others = [0, 2, 3]
    ranks.begin("go_on", others)
    ranks.answers(others)
    answers = ranks.answers(others)
    assert {rank: answer.value for rank, answer in answers.items()} == dict.fromkeys(others, [others, 3]), answers
    ranks.begin("shrink", [1])
    ranks.signal(1, signal.SIGCONT)
    ranks.answer(1)
    answer = ranks.answer(1)
    assert answer.error == "Aborted" and "declared lost by the others" in answer.text, answer


def test_ranks_that_live_are_left_out(job: Jobs, where: dict[str, str]) -> None:
    """One that lives and is named, one that died and is not, and later the one that serves as rank 0."""
    ranks = job(5, where["transport"], of_rank=lambda rank: {"ARRAYCOMM_HOSTID": str(rank % 2)} if where["hosts"] else {})
    ranks.begin("shrink", [0], exclude=[0])
    ranks.answer(0)
    assert (answer := ranks.answer(0)).error == "ValueError" and "only the ranks that stay" in answer.text, answer
    ranks.begin("shrink", [0], exclude=[5])
    ranks.answer(0)
    assert (answer := ranks.answer(0)).error == "ValueError", answer
    assert ranks.call("total") == dict.fromkeys(range(5), 5)  # nothing has happened
    for rank in (0, 1, 4):
        _announced(ranks, "shrink", rank, exclude=[3])
    ranks.kill(2)
    _shrunk(ranks, [0, 1, 4])
    for rank in (1, 4):
        _announced(ranks, "shrink", rank, exclude=[0])
    _shrunk(ranks, [1, 4])
    ranks.call("close_group", [0, 3])


def test_ranks_die_until_one_is_left(transport: str) -> None:
    """A slice of `python -m tests.faults.shrinking`."""
    assert len(down_to_one(transport, 6, random.Random(7), 5)) >= 3


def test_threads_shrink() -> None:
    store = HashStore()

    def work(rank: int) -> list[int]:
        with arraycomm.init(rank=rank, world_size=8, store=store) as world:
            group = world.shrink()  # of nobody
            assert group.ranks == tuple(range(8)) and group.all_reduce(np.ones(1))[0] == 8
            if rank in (2, 5):
                raise ValueError("leaves")
            with pytest.raises(arraycomm.PeerLost):
                group.all_reduce(np.ones(3))
            left = group.shrink()
            return [*left.ranks, int(left.all_reduce(np.ones(1))[0])]

    def caught(rank: int) -> list[int] | None:
        try:
            return work(rank)
        except ValueError:
            return None

    others = [0, 1, 3, 4, 6, 7]
    assert at_once(8, caught) == [[*others, 6] if rank in others else None for rank in range(8)]


def test_what_cannot_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    with arraycomm.init(rank=0, world_size=1, store=HashStore()) as group:
        assert group.shrink().ranks == (0,) and group.shrink().shrink().size == 1
        with pytest.raises(ValueError, match="timeout"):
            group.shrink(timeout=0)
        assert not group.closed
        monkeypatch.delattr(type(group._communicator), "gone")
        with pytest.raises(arraycomm.DistBackendError, match="backend 'socket' does not report which ranks were lost"):
            group.shrink()
        assert not group.closed


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

"""Join: ranks with different numbers of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arraycomm.distributed as dist
from arraycomm.distributed.algorithms import Join, Joinable, JoinHook
from arraycomm.launch.spawn import spawn

RANKS = 3


class Counts(Joinable):
    """Counts the ranks that have inputs, as often as it is told to."""

    join_device, join_process_group = "cpu", None

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.shadowed, self.last = 0, None

    def join_hook(self, **kwargs: Any) -> JoinHook:
        return Shadow(self, **kwargs)

    def __call__(self, times: int = 1) -> None:
        work = Join.notify_join_context(self)
        assert work is None or work.wait()
        for _ in range(times):
            x = np.ones(1)
            dist.all_reduce(x)
            self.seen.append(x[0])


class Shadow(JoinHook):
    def __init__(self, of: Counts, times: int = 1) -> None:
        self.of, self.times = of, times

    def main_hook(self) -> None:
        for _ in range(self.times):
            dist.all_reduce(np.zeros(1))
        self.of.shadowed += 1

    def post_hook(self, is_last_joiner: bool) -> None:
        self.of.last = is_last_joiner


def loop(rank: int, several: list[Counts], inputs: int, times: int = 1, **named: Any) -> None:
    with Join(several, times=times, **named) as inside:
        assert isinstance(inside, Join)
        for _ in range(inputs):
            for one in several:
                one(times)


def uneven(rank: int) -> None:
    """Twice with the same objects; rank 1 has inputs alone at the end, then rank 0 has none at all."""
    several = [Counts(), Counts()]
    loop(rank, several, (1, 4, 2)[rank], times=2)
    for one in several:
        assert one.seen == [3, 3, 2, 2, 1, 1, 1, 1][: 2 * (1, 4, 2)[rank]]
        assert (one.shadowed, one.last) == ((3, 0, 2)[rank], rank == 1)
    loop(rank, several, (0, 2, 2)[rank])
    assert several[0].seen[2 * (1, 4, 2)[rank]:] == [2] * (0, 2, 2)[rank] and several[1].last == (rank > 0)


def even(rank: int) -> None:
    one = Counts()
    loop(rank, [one], 2, enable=False)
    assert one.seen == [3, 3] and (one.shadowed, one.last) == (0, None)
    loop(rank, [one], 2)
    one()  # outside: nothing is counted
    assert one.seen == [3] * 5 and (one.shadowed, one.last) == (0, True)


def thrown(rank: int) -> None:
    """All ranks raise, in the same round, and the group goes on."""
    one = Counts()
    text = "Rank 0 exhausted all inputs." if rank == 0 else "Detected at least one rank that exhausted inputs"
    with pytest.raises(RuntimeError, match=text):
        loop(rank, [one], (2, 3, 9)[rank], throw_on_early_termination=True)
    assert one.seen == [3, 3]
    even(rank)


def raised(rank: int) -> None:
    one = Counts()
    with pytest.raises(KeyError), Join([one]):
        one()
        raise KeyError
    assert one.last is None
    one()


def refused(rank: int) -> None:
    class Alone(Counts):
        join_process_group = dist.new_group([rank], use_local_synchronization=True)  # type: ignore[assignment]

    for wrong, error in (([], ValueError), ([Counts(), Alone()], ValueError), ([np.ones(1)], TypeError)):
        with pytest.raises(error):
            Join(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="abstract"):
        Joinable()  # type: ignore[abstract]
    one = Alone()
    with Join([one]):
        Join.notify_join_context(one)
    assert one.last is True


def run(rank: int) -> None:
    dist.init_process_group("gloo")
    for check in (uneven, even, thrown, raised, refused):
        check(rank)
    dist.destroy_process_group()


def test_all_ranks() -> None:
    spawn(run, nprocs=RANKS, start_method="forkserver")

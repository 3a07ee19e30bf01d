"""Ranks that end where each host has leaders that go between it and the others."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest

from . import checks
from .job import Job

Jobs = Callable[..., Job]
# Seat 0 of each host always leads; of "aaab" ranks 1 and 2 follow, of "aabb" seat 1 leads where arrays are long.
VICTIMS = [("aaab", 0), ("aaab", 1), ("aaab", 3), ("aabb", 1), ("aabb", 2)]


def placed(job: Jobs, hosts: str, **environ: str) -> Job:
    return job(len(hosts), "auto", environ, of_rank=lambda rank: {"ARRAYCOMM_HOSTID": hosts[rank]})


def killed_after(seconds: float, ranks: Job, victim: int) -> None:
    others = [rank for rank in range(ranks.size) if rank != victim]
    time.sleep(seconds)
    since = ranks.kill(victim)
    checks.lost(ranks.answers(others), ranks, victim, "process died", since, within=1)
    checks.clean(ranks, others)


@pytest.mark.parametrize(("hosts", "victim"), VICTIMS)
@pytest.mark.parametrize("counts", [(5,), (5000,), (400_000,)])
def test_killed_at_any_moment(job: Jobs, hosts: str, victim: int, counts: tuple[int, ...]) -> None:
    rng = random.Random(f"{hosts} {victim} {counts}")
    ranks = placed(job, hosts)
    ranks.begin("cycle_forever", what="collectives", counts=counts)
    ranks.answers()
    killed_after(rng.uniform(0, 0.1), ranks, victim)


@pytest.mark.parametrize(("hosts", "victim"), VICTIMS)
def test_killed_before_it_came(job: Jobs, hosts: str, victim: int) -> None:
    """The others wait inside their hosts, or their leaders between them."""
    ranks = placed(job, hosts)
    others = [rank for rank in range(ranks.size) if rank != victim]
    ranks.begin("announced_total", others)
    ranks.answers(others)
    killed_after(0.05, ranks, victim)


@pytest.mark.parametrize(("hosts", "absent"), VICTIMS)
def test_deadline_names_who_did_not_come(job: Jobs, hosts: str, absent: int) -> None:
    """Although most ranks wait for a leader that waits for somebody else."""
    ranks = placed(job, hosts)
    others = [rank for rank in range(ranks.size) if rank != absent]
    ranks.signal(absent, signal.SIGSTOP)
    ranks.begin("total", others, timeout=0.5)
    answers = ranks.answers(others)
    ranks.signal(absent, signal.SIGCONT)
    for answer in answers.values():
        assert answer.error == "CollectiveTimeout" and answer.ranks == (absent,), answer

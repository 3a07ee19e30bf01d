"""Kills ranks of running jobs at random points until one is left, again and again; the other ranks continue by group.shrink().

    python -m tests.faults.shrinking [KILLS] [SEED]     default: 20, for each transport

Says for each transport how long it took from a kill until all survivors had summed something in the group of those who are left.
One rank is killed, or two at once, or a second one a moment later, while the others shrink.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from . import survivors
from .job import Job

TRANSPORTS = ("shm", "tcp", "both")  # both: ranks that believe to be on two hosts
SIZES_OF_WORK = ((1,), (5000,), (200_000,), (1, 64, 5000))


def down_to_one(transport: str, size: int, draw: random.Random, kills: int) -> list[float]:
    """A job that loses ranks until one is left, or as many were killed: s from each kill (or two) until all survivors went on."""
    hosts = (lambda rank: {"ARRAYCOMM_HOSTID": f"host {rank % 2}"}) if transport == "both" else None
    left, waited = list(range(size)), list[float]()
    with Job(size, "auto" if hosts else transport, of_rank=hosts, tasks=survivors) as job:
        job.begin("cycle_on", what=draw.choice(("collectives", "messages", "mixed")), counts=draw.choice(SIZES_OF_WORK))
        assert all(answer.value == left for answer in job.answers().values())
        while len(left) > 1 and kills > size - len(left):
            time.sleep(draw.uniform(0, 0.02))
            victims = draw.sample(left, min(draw.choice((1, 1, 2)), len(left) - 1))
            pause, since = draw.choice((0.0, draw.uniform(0, 0.003))), 0.0
            for victim in victims:
                since = job.kill(victim)
                time.sleep(pause)
            left = [rank for rank in left if rank not in victims]
            latest = 0.0
            for rank in left:
                answer = job.answer(rank)
                while answer.value != left:
                    assert not answer.error, f"rank {rank}, when {victims} were killed and {left} left: {answer.trace}"
                    answer = job.answer(rank)
                latest = max(latest, answer.at)
            waited.append(latest - since)
        if len(left) == 1:
            before, after, _ = job.call("close_group", left)[left[0]]
            assert before == after, (before, after)
    return waited


def main(kills: int = 20, seed: int = 0) -> None:
    for transport in TRANSPORTS:
        draw, waited = random.Random(seed), list[float]()
        while len(waited) < kills:
            waited += down_to_one(transport, draw.randrange(2, 9), draw, kills)
        median, worst = statistics.median(waited) * 1e3, max(waited) * 1e3
        print(f"{transport:5} {len(waited)} times, ms: median {median:.1f}, worst {worst:.1f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Ranks, and the store's host, that fail while the others are inside init()."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

from arraycomm.core.bootstrap.store import Store, TCPStore

from . import checks
from .job import Job

Jobs = Callable[..., Job]
SECRET = "of a test only, no secret"


def _await(store: Store, ranks: Iterable[int]) -> None:
    """Until they wait for the others."""
    store.wait([f"arraycomm/0/world/1/came/{rank}" for rank in ranks], timedelta(seconds=20))


def _gather(job: Jobs, ranks: Iterable[int]) -> Job:
    """Of four ranks these have called init(), in a store that this process serves."""
    started = job(4, opened=False)
    started.begin("open_group", ranks)
    assert started.meeting is not None
    _await(started.meeting.store, ranks)
    return started


def _told(ranks: Job, others: Iterable[int], culprit: int, why: str, since: float) -> None:
    for rank, answer in ranks.answers(others).items():
        assert answer.error == "PeerLost" and answer.ranks == (culprit,), (answer, answer.trace)
        assert f"rank {rank} of 4: rank {culprit} (host " in answer.text and why in answer.text, answer
        assert f"pid {ranks.pid(culprit)})" in answer.text, answer
        print(f"rank {rank} knew after {1000 * (answer.at - since):.1f} ms")
        assert answer.at - since < 1 + checks.SLACK


def test_killed_while_the_ranks_gather(job: Jobs) -> None:
    ranks = _gather(job, [0, 1, 2])
    _told(ranks, [0, 2], 1, "its process has ended", ranks.kill(1))


def test_killed_rank_is_known_to_those_who_come_later(job: Jobs) -> None:
    ranks = _gather(job, [1, 2])
    since = ranks.kill(1)
    _told(ranks, [2], 1, "its process has ended", since)
    since = time.monotonic()
    ranks.begin("open_group", [0])
    ranks.begin("open_group", [3])
    _told(ranks, [0, 3], 1, "its process has ended", since)


def test_control_c_while_the_ranks_gather(job: Jobs) -> None:
    ranks = _gather(job, [0, 1, 2])
    since = ranks.signal(1, signal.SIGINT)
    answer = ranks.answer(1)
    assert answer.error == "KeyboardInterrupt" and answer.at - since < 0.2 + checks.SLACK, answer
    _told(ranks, [0, 2], 1, "KeyboardInterrupt", since)


@pytest.mark.parametrize("name, value", [("ARRAYCOMM_SOCKET_CONNECTIONS", "65"), ("ARRAYCOMM_TORCH_STORE", "maybe")])
def test_exception_before_the_ranks_connect(job: Jobs, transport: str, name: str, value: str) -> None:
    """A setting that only one rank has wrong: a number, or a switch."""
    def wrong(rank: int) -> dict[str, str]:
        return {name: value} if rank == 1 else {}

    ranks = job(4, transport, of_rank=wrong, opened=False)
    ranks.begin("open_group")
    answer = ranks.answer(1)
    assert answer.error == "ValueError", answer
    _told(ranks, [0, 2, 3], 1, f"ValueError: {name}", answer.at)


@pytest.mark.parametrize("size", [2, 4])
def test_host_of_the_store_is_killed(job: Jobs, free_port: int, size: int) -> None:
    environ = {"ARRAYCOMM_STORE": "", "MASTER_PORT": str(free_port), "ARRAYCOMM_SECRET": SECRET}
    ranks = job(size + 1, "auto", environ, opened=False)  # the last one never comes
    ranks.begin("open_group", range(size))
    watcher = TCPStore("127.0.0.1", free_port, secret=SECRET.encode())
    try:
        _await(watcher, range(size))
        since = ranks.kill(0)
        for answer in ranks.answers(range(1, size)).values():
            assert answer.error == "StoreLost" and f"TCPStore 127.0.0.1 port {free_port}" in answer.text, answer
            assert answer.at - since < 1 + checks.SLACK
    finally:
        watcher.close()

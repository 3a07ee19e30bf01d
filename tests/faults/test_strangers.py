"""Strangers at every listening socket of a running job, and other jobs."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from . import checks
from .job import Job

Jobs = Callable[..., Job]
Target = tuple[int, tuple[str, int] | str]  # address family, address


def _targets(ranks: Job) -> list[Target]:
    assert ranks.meeting is not None
    found: list[Target] = [(socket.AF_INET, (ranks.meeting.address, ranks.meeting.port))]
    for addresses, path in ranks.call("listening").values():
        found += [(socket.AF_INET, tuple(address)) for address in addresses] + [(socket.AF_UNIX, path)]
    return found


@contextlib.contextmanager
def _connected(target: Target) -> Iterator[socket.socket]:
    with socket.socket(target[0]) as sock:
        sock.settimeout(5)
        sock.connect(target[1])
        yield sock


def _scan(target: Target) -> None:
    with _connected(target):
        pass


def _garbage(target: Target) -> None:
    with _connected(target) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(random.Random(1).randbytes(100_000))


def _web(target: Target) -> None:
    with _connected(target) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1000)


def _reset(target: Target) -> None:
    with _connected(target) as sock:
        sock.sendall(b"\0" * 10)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.parametrize("visit", [_scan, _garbage, _web, _reset])
def test_strangers(job: Jobs, transport: str, visit: Callable[[Target], None]) -> None:
    """The job goes on, keeps nothing of them, and is as fast to close."""
    ranks = job(2, transport)
    ranks.call("cycle")
    targets, before = _targets(ranks), ranks.call("sockets")
    ranks.begin("cycle_for", seconds=0.5)
    for target in targets * 3:
        visit(target)
    assert all(answer.value for answer in ranks.answers().values())
    end = time.monotonic() + 5
    while (now := ranks.call("sockets")) != before and time.monotonic() < end:
        ranks.call("pause", seconds=0.1)
    assert now == before
    checks.clean(ranks, range(2), poisoned=False)


@contextlib.contextmanager
def _half_open(target: Target) -> Iterator[None]:
    """Has said one byte, or was refused before: too many had not said who they are."""
    with _connected(target) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(b"x")
        yield


def test_crowd_of_silent_strangers(job: Jobs, transport: str) -> None:
    """More half-open connections than a rank keeps do not shut out a member that comes meanwhile."""
    ranks = job(3, transport)
    with contextlib.ExitStack() as crowd:
        for target in _targets(ranks):
            for _ in range(70):
                crowd.enter_context(_half_open(target))
        ranks.call("cycle", counts=(1, 5000))  # over TCP: the data connections are made now
        ranks.call("split_off", members=[0, 1, 2])
        ranks.call("total")


def test_another_job_at_the_same_port(job: Jobs) -> None:
    """A rank with another secret is refused at once; those inside notice nothing."""
    ranks = job(2, "auto")
    assert ranks.meeting is not None
    ranks.begin("cycle_for", seconds=1.5)
    port = str(ranks.meeting.port)
    intruders = job(1, "auto", {"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": port, "ARRAYCOMM_SECRET": "key" * 11,
                                "LOCAL_WORLD_SIZE": "2"}, opened=False)
    since = time.monotonic()
    intruders.begin("open_group", timeout=20)
    answer = intruders.answer(0)
    assert answer.error == "AuthFailed", answer
    assert answer.at - since < 1 + checks.SLACK
    assert all(answer.value for answer in ranks.answers().values())


def test_same_rank_twice(job: Jobs) -> None:
    """Even with the secret a second rank 1 does not get in."""
    ranks = job(2, "auto")
    assert ranks.meeting is not None
    secret = ranks.meeting.secret
    assert secret is not None
    place = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": str(ranks.meeting.port), "LOCAL_WORLD_SIZE": "2",
             "ARRAYCOMM_SECRET": secret.hex()}
    twin = job(1, "auto", place, opened=False)
    twin.begin("open_group", timeout=20)
    answer = twin.answer(0)
    assert answer.error == "AuthFailed" and "rank 1 is taken by" in answer.text, answer
    ranks.call("total")


def test_strangers_before_the_ranks_come(job: Jobs, transport: str) -> None:
    """The store is there first, and must still have room for the ranks."""
    ranks = job(2, transport, opened=False)
    assert ranks.meeting is not None
    target = (socket.AF_INET, (ranks.meeting.address, ranks.meeting.port))
    with contextlib.ExitStack() as crowd:
        for _ in range(100):
            crowd.enter_context(_half_open(target))
        for visit in (_scan, _garbage, _reset):
            visit(target)
        ranks.call("open_group", timeout=20)
    ranks.call("total")

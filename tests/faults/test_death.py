"""Ranks that end: killed, by an exception, by leaving alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from . import checks
from .job import Job

Jobs = Callable[..., Job]
# What the others hear of a rank that left without an error, by whichever way it came first.
CLOSED = ("it has closed the group", "it left while a message was expected", "the connection was closed by the peer")


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_killed_around_a_collective(job: Jobs, transport: str, size: int, moment: str) -> None:
    ranks = job(size, transport)
    victim = size // 2
    others = [rank for rank in range(size) if rank != victim]
    if moment == "during":  # the others have begun and wait
        ranks.begin("announced_total", others)
        ranks.answers(others)
        time.sleep(0.05)
        since = ranks.kill(victim)
    else:
        if moment == "after":
            assert ranks.call("total") == dict.fromkeys(range(size), float(size))
        since = ranks.kill(victim)
        ranks.begin("total", others)
    checks.lost(ranks.answers(others), ranks, victim, "process died", since, within=1)
    checks.clean(ranks, others)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("what", ["collectives", "messages"])
def test_killed_at_any_moment(job: Jobs, transport: str, size: int, what: str) -> None:
    rng = random.Random(f"{transport} {size} {what}")
    ranks, victim = job(size, transport), rng.randrange(size)
    others = [rank for rank in range(size) if rank != victim]
    ranks.begin("cycle_forever", what=what)
    ranks.answers()
    time.sleep(rng.uniform(0, 0.1))
    since = ranks.kill(victim)
    checks.lost(ranks.answers(others), ranks, victim, "process died", since, within=1)
    checks.clean(ranks, others)


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_where_the_root_runs_ahead(job: Jobs, victim: int) -> None:
    """The root, whose readers wait for it; and a reader that has not come, so that the root finds no slot."""
    ranks = job(3, "shm")
    others = [rank for rank in range(3) if rank != victim]
    ranks.begin("broadcast_forever", others, root=0)
    ranks.answers(others)
    time.sleep(0.1)
    since = ranks.kill(victim)
    checks.lost(ranks.answers(others), ranks, victim, "process died", since, within=1)
    checks.clean(ranks, others)


def test_killed_while_the_root_closes(job: Jobs) -> None:
    """close() waits for those who have not come to the root's broadcast."""
    ranks = job(2, "shm")
    ranks.begin("broadcast_and_close", [0])
    ranks.answers([0])
    time.sleep(0.1)
    since = ranks.kill(1)
    checks.lost(ranks.answers([0]), ranks, 1, "process died", since, within=1)


@pytest.mark.parametrize("end", ["kill", "close"])
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_the_root_closes_after_one_that_went_before_its_last_broadcast(job: Jobs, taken: int, end: str) -> None:
    """However it went, and however many broadcasts it has taken part in before."""
    ranks = job(2, "shm")
    ranks.begin("broadcasts", [0], count=3)
    ranks.begin("broadcasts", [1], count=taken)
    ranks.answers()
    if end == "kill":
        ranks.kill(1)
        time.sleep(0.3)  # until the root knows
    else:
        ranks.begin("leave", [1], how="close")
        ranks.answers([1])
    since = time.monotonic()
    ranks.begin("leave", [0], how="close")
    answers = ranks.answers([0])
    checks.lost(answers, ranks, 1, "process died" if end == "kill" else "it has closed the group", since, within=1)
    assert "broadcast #3" in answers[0].text


def test_the_root_closes_after_one_that_died_behind_its_last_broadcast(job: Jobs) -> None:
    ranks = job(2, "shm")
    ranks.begin("broadcasts", count=3)
    ranks.answers()
    ranks.kill(1)
    time.sleep(0.3)
    ranks.begin("leave", [0], how="close")
    assert not ranks.answer(0).error


def test_killed_while_a_message_is_awaited(job: Jobs, transport: str) -> None:
    ranks = job(3, transport)
    ranks.begin("announced_recv", [0], source=1)
    ranks.begin("announced_recv", [2], source=None)
    ranks.answers([0, 2])
    since = ranks.kill(1)
    checks.lost(ranks.answers([0, 2]), ranks, 1, "process died", since, within=1)
    checks.clean(ranks, [0, 2])


@pytest.mark.parametrize("way", ["staged", "read"])
def test_killed_while_its_message_is_read(job: Jobs, way: str) -> None:
    """The receiver is in the middle of the array, or of the ring."""
    ranks = job(2, "shm", {"ARRAYCOMM_ALGORITHM": f"recv={way}"})
    ranks.begin("receive_long", [0], source=1, count=1 << 24)
    since = time.monotonic()
    ranks.begin("send_and_die", [1], dest=0, count=1 << 24)
    checks.lost(ranks.answers([0]), ranks, 1, "process died", since, within=2)  # one of them fills 128 MiB
    checks.clean(ranks, [0])


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_while_the_kernel_copies(job: Jobs, victim: int) -> None:
    """Nearly all of the time both ranks are in each other's arrays."""
    ranks = job(2, "shm", {"ARRAYCOMM_ALGORITHM": "all_to_all=direct"})
    ranks.begin("exchange_forever", count=1 << 20)
    ranks.answers()
    time.sleep(0.1)
    since = ranks.kill(victim)
    checks.lost(ranks.answers([1 - victim]), ranks, victim, ("process died", "its process has ended"), since, within=1)
    checks.clean(ranks, [1 - victim])


@pytest.mark.parametrize("way", ["staged", "read"])
@pytest.mark.parametrize("timeout", [0.002, 0.01, 0.03])
def test_array_taken_back_while_it_is_read(job: Jobs, way: str, timeout: float) -> None:
    """The sender's time ends, and its array changes: the receiver has the message as it was sent, or an error."""
    ranks, count = job(2, "shm", {"ARRAYCOMM_ALGORITHM": f"recv={way}"}), 1 << 24
    ranks.begin("receive_long", [0], source=1, count=count)
    ranks.begin("send_with_timeout", [1], dest=0, count=count, timeout=timeout)
    answers = ranks.answers()
    assert answers[0].value == count or answers[0].error in ("CollectiveTimeout", "PeerLost"), answers
    assert answers[1].value is None and answers[1].error in ("", "CollectiveTimeout"), answers


def test_killed_while_the_worker_runs(job: Jobs, transport: str) -> None:
    ranks = job(3, transport)
    ranks.begin("announced_wait", [0, 2])
    ranks.answers([0, 2])
    since = ranks.kill(1)
    checks.lost(ranks.answers([0, 2]), ranks, 1, "process died", since, within=1)
    checks.clean(ranks, [0, 2])


def test_groups_without_the_lost_rank_go_on(job: Jobs, transport: str) -> None:
    ranks = job(4, transport)
    ranks.call("split_off", members=[0, 2, 3])
    ranks.begin("cycle_for", [0, 2, 3], seconds=1.0)
    time.sleep(0.3)
    ranks.kill(1)
    assert all(answer.value for answer in ranks.answers([0, 2, 3]).values())


@pytest.mark.parametrize(("how", "why"), [
    ("os._exit", ("process died",)),
    ("exception", ("left with Mishap",)),
    ("close", (*CLOSED, "it has ended")),
])
def test_leaving_alone(job: Jobs, transport: str, how: str, why: tuple[str, ...]) -> None:
    """The others wait for a rank that ends, or leaves the group."""
    ranks = job(3, transport)
    ranks.begin("announced_total", [0, 2])
    ranks.answers([0, 2])
    since = time.monotonic()
    ranks.begin("leave", [1], how=how)
    checks.lost(ranks.answers([0, 2]), ranks, 1, why, since, within=1)
    assert (ranks.exit_code(1) == 7) if how == "os._exit" else not ranks.answer(1).error
    checks.clean(ranks, [0, 2])


LAST_LINES = {
    "end of the script": ("", ("its process ended with exit status 0",)),
    "sys.exit": ("sys.exit(3)", ("its process ended with exit status 3",)),
    "uncaught exception": ("raise KeyError('lost')", ("exited with KeyError",)),
    "work in flight": ("work = [group.all_reduce(np.ones(1 << 20), async_op=True), group.irecv(0, 9, like=np.ones(4))]",
                       ("exited with an operation under way",)),
    "thread in an operation": ("threading.Thread(target=group.recv, args=(0, 9), kwargs=dict(like=np.ones(4)), daemon=True)"
                               ".start()",
                               ("its process ended with exit status 0",)),
    "thread that reports its error": ("threading.Thread(target=report, daemon=True).start()",
                                      ("its process ended with exit status 0",)),
}
SCRIPT = """
import sys, threading, time
import numpy as np
import arraycomm
group = arraycomm.init("file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2, timeout=30)
group.barrier()
def report():
    try:
        group.recv(0, 9, like=np.ones(4))
    except arraycomm.Aborted as error:
        while True:  # Python ends a thread that writes as good as always while it does, and this one only then
            print(error, file=sys.stderr)
if group.rank == 0:
    try:
        group.recv(1, like=np.ones(4))
    except arraycomm.PeerLost as error:
        print(error)
        sys.exit(9)
else:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("how", LAST_LINES)
def test_end_of_the_interpreter(tmp_path: Path, transport: str, how: str) -> None:
    """A script ends without closing its group: it ends at once, and the peer is told why."""
    line, why = LAST_LINES[how]
    environ = {**os.environ, "ARRAYCOMM_TRANSPORT": transport}
    script = SCRIPT + (f"    {line}\n" if line else "")
    ranks = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "store"), str(rank)], env=environ, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        leaver = ranks[1].communicate(timeout=20)
        left = time.monotonic()
        text, errors = ranks[0].communicate(timeout=20)
        assert time.monotonic() - left < 1 + checks.SLACK
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert ranks[0].returncode == 9 and f"pid {ranks[1].pid})" in text and any(w in text for w in why), (text, errors, leaver)
    assert ranks[1].returncode == {"sys.exit": 3, "uncaught exception": 1}.get(how, 0), leaver


def test_store_of_the_launcher_dies(job: Jobs, transport: str) -> None:
    ranks = job(3, transport)
    assert ranks.meeting is not None
    ranks.meeting.close()
    ranks.call("cycle")
    ranks.call("split_off", members=[0, 1, 2])  # new groups do without it too
    ranks.call("total")


def test_rank_that_hosts_the_store_dies(job: Jobs, transport: str, free_port: int) -> None:
    """Rank 0 is a rank as any other: groups without it go on."""
    environ = {"ARRAYCOMM_STORE": "", "MASTER_PORT": str(free_port), "ARRAYCOMM_SECRET": "of a test only, no secret"}
    ranks = job(3, transport, environ)
    ranks.call("split_off", members=[1, 2])
    ranks.kill(0)
    ranks.call("cycle", [1, 2])

"""What every survivor of a fault must see and leave."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from .job import Answer, Job

SLACK = 3.0  # s more than promised: these tests share two cores with others. Still below a silent rank's 5 s


def names(answer: Answer, job: Job, rank: int) -> None:
    """The error says which rank, on which host, in which process, and the caller's own place."""
    assert answer.ranks == (rank,), (answer, answer.ranks)
    assert f"rank {rank} (host {socket.gethostname()}, pid {job.pid(rank)})" in answer.text
    assert f" of {job.size} in group 'world'" in answer.text


def lost(answers: dict[int, Answer], job: Job, rank: int, why: str | tuple[str, ...], since: float,
         within: float) -> None:
    words = (why,) if isinstance(why, str) else why
    for survivor, answer in answers.items():
        assert answer.error == "PeerLost", (survivor, answer, answer.trace)
        names(answer, job, rank)
        assert any(word in answer.text for word in words), answer.text
        seconds = answer.at - since
        print(f"rank {survivor} knew after {1000 * seconds:.1f} ms")
        assert seconds < within + SLACK


def clean(job: Job, ranks: Iterable[int], *, poisoned: bool = True) -> None:
    """A group that failed stays failed, can be closed, and leaves nothing behind."""
    ranks = list(ranks)
    if poisoned:
        for took in job.call("try_again", ranks).values():
            assert took < 0.01 + SLACK
    for rank, (before, after, took) in job.call("close_group", ranks).items():
        assert after == before, f"rank {rank}"
        assert took < 1 + SLACK

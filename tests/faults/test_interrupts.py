"""Ctrl-C, abort(), fork and threads."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import numpy as np
import pytest

import arraycomm
from arraycomm._engine import interrupting

from . import checks
from .job import Job

Jobs = Callable[..., Job]


@pytest.mark.parametrize("task", ["announced_total", "announced_recv", "announced_wait"])
def test_control_c_while_waiting(job: Jobs, transport: str, task: str) -> None:
    """The interrupted rank gets KeyboardInterrupt; it leaves as its `with` statement would, and the others know."""
    ranks = job(3, transport)
    parameters = {"source": 1} if task == "announced_recv" else {}
    ranks.begin(task, [0, 2], **parameters)
    ranks.answers([0, 2])
    time.sleep(0.1)
    since = ranks.signal(0, signal.SIGINT)
    answer = ranks.answer(0)
    assert answer.error == "KeyboardInterrupt", answer
    print(f"answered after {1000 * (answer.at - since):.1f} ms")
    assert answer.at - since < 0.2 + checks.SLACK
    if task == "announced_wait":  # the operation goes on: one may wait again, or leave
        ranks.call("leave", [0], how="exception")
        checks.lost(ranks.answers([2]), ranks, 0, "left with Mishap", since, within=1)
        checks.clean(ranks, [2])
        return
    peer = ranks.answer(2)
    assert peer.error == "Aborted" and "interrupted by a signal" in peer.text, peer
    checks.names(peer, ranks, 0)
    assert peer.at - since < 1 + checks.SLACK
    checks.clean(ranks, range(3))


@pytest.mark.parametrize("wait_in", ["all_reduce", "recv", "work"])
def test_abort_from_another_thread(job: Jobs, transport: str, wait_in: str) -> None:
    ranks = job(3, transport)
    ranks.begin("announced_total", [2])
    ranks.answer(2)
    ranks.begin("abort_from_thread", [0], wait_in=wait_in)
    moments = ranks.answer(0)
    assert not moments.error, moments.trace
    called = moments.value["called"]
    assert moments.value["freed"] - called < 0.2 + checks.SLACK
    peer = ranks.answer(2)
    assert peer.error == "Aborted" and "aborted the group: enough" in peer.text, peer
    checks.names(peer, ranks, 0)
    print(f"peer knew after {1000 * (peer.at - called):.1f} ms")
    assert peer.at - called < 0.2 + checks.SLACK
    checks.clean(ranks, range(3))


def test_fork(job: Jobs, transport: str) -> None:
    """A child cannot use the group, and its parent's goes on."""
    ranks = job(2, transport)
    ranks.call("cycle", counts=(1, 5000))
    for text in ranks.call("use_after_fork").values():
        assert text.startswith("RuntimeError") and "fork" in text, text
    ranks.call("cycle", counts=(1, 5000))
    checks.clean(ranks, range(2), poisoned=False)


def test_two_threads(job: Jobs, transport: str) -> None:
    ranks = job(2, transport)
    assert ranks.call("two_threads", turns=300) == {0: 0, 1: 0}
    ranks.call("cycle", counts=(1, 5000))
    checks.clean(ranks, range(2), poisoned=False)


def test_closing_twice(job: Jobs, transport: str) -> None:
    ranks = job(2, transport)
    ranks.call("close_twice")


def test_a_handler_cannot_close_the_group_that_it_interrupted() -> None:
    """Which would wait for an operation that goes on when the handler has returned."""
    group, x = arraycomm.init(), np.zeros(1)

    def close(*_: object) -> None:
        if interrupting():  # else it came before the operation: the next one will not
            group.close()

    before = signal.signal(signal.SIGALRM, close)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(RuntimeError, match="cannot be closed by a handler of a signal"):
            group.recv(0, out=x, timeout=20)
        assert not group.closed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    group.close()

"""arraycomm.run(): ranks that are threads of one process."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arraycomm
from arraycomm import run
from arraycomm.core.group.window import Window


def _left() -> tuple[int, set[str]]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), {thread.name for thread in threading.enumerate()}


def everything(group: arraycomm.Group) -> int:
    rank, size = group.rank, group.size
    x, total = np.arange(4.0) + rank, size * (size - 1) / 2
    assert group.all_reduce(x)[0] == total and group.all_reduce(x, async_op=True).result()[0] == total
    assert group.all_gather(x[:1]).tolist() == list(range(size)) and group.broadcast(x, root=size - 1)[0] == size - 1
    assert group.all_reduce(np.ones(1 << 17))[-1] == size  # more than goes through a slot
    assert group.reduce_scatter(np.ones(size))[0] == size and group.all_to_all(np.arange(size))[0] == rank
    assert group.sendrecv(x, (rank + 1) % size, (rank - 1) % size, like=x).array[0] == (rank - 1) % size
    assert group.all_gather_object({"rank": rank})[size - 1] == {"rank": size - 1}
    half = group.split(rank % 2)
    assert half is not None and half.all_reduce(np.ones(1))[0] == half.size == len(range(rank % 2, size, 2))
    shared = group.empty(100)
    shared[:] = rank
    assert group.all_reduce(shared, op="max")[-1] == size - 1
    mine = np.zeros(size)
    window = Window(group, mine, "window")
    for put in window.put(np.full(1, rank + 1.0), (rank + 1) % size, rank):
        put.wait()
    window.fence(60.0)
    assert mine[(rank - 1) % size] == (rank - 1) % size + 1
    return rank


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_every_operation(size: int) -> None:
    before = _left()
    assert run(everything, size) == list(range(size))
    assert _left() == before


def test_over_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _left()
    monkeypatch.setenv("ARRAYCOMM_TRANSPORT", "tcp")
    assert run(everything, 3) == list(range(3))
    assert _left() == before


def test_again_and_inside_each_other() -> None:
    def outer(group: arraycomm.Group, more: int) -> float:
        inner = run(lambda part: part.all_reduce(np.ones(1))[0], more)
        return float(group.all_reduce(np.array(inner))[0])

    for _ in range(3):
        assert run(outer, 3, 2) == [6.0] * 3


def test_from_another_thread_and_under_an_event_loop() -> None:
    async def cell() -> list[int]:
        return run(everything, 2)

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(cell())))
    thread.start()
    thread.join(60)
    assert found == [[0, 1]]


def test_ranks_see_the_callers_context() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)
    assert run(lambda group: variable.get(), 2) == [7, 7]


def test_what_a_rank_raises(caplog: pytest.LogCaptureFixture) -> None:
    """It leaves, the others learn from whom, and the caller gets its exception, not theirs."""
    lost: list[arraycomm.PeerLost] = []

    def work(group: arraycomm.Group) -> None:
        if group.rank == 2:
            raise KeyError("missing")
        try:
            group.barrier()
        except arraycomm.PeerLost as error:
            lost.append(error)
            raise

    before = _left()
    with pytest.raises(KeyError, match="missing") as raised:
        run(work, 4)
    assert "in rank 2 of 4" in "".join(raised.value.__notes__)  # type: ignore[attr-defined]
    assert [error.ranks for error in lost] == [(2,)] * 3 and all("left with KeyError" in str(error) for error in lost)
    del raised, lost[:]
    assert _left() == before


def test_a_rank_that_returns_early_is_lost_for_who_needs_it() -> None:
    with pytest.raises(arraycomm.PeerLost, match="rank 0") as raised:
        run(lambda group: group.rank and group.barrier(), 2)
    assert "in rank 1 of 2" in "".join(raised.value.__notes__)  # type: ignore[attr-defined]


def test_a_rank_that_exits() -> None:
    with pytest.raises(SystemExit):
        run(lambda group: sys.exit(3) if group.rank else group.barrier(), 2)


def test_abort() -> None:
    def work(group: arraycomm.Group) -> str:
        if group.rank == 1:
            group.abort("enough")
        with pytest.raises(arraycomm.Aborted) as raised:
            group.recv(0, like=np.zeros(1))
        return str(raised.value)

    assert all("rank 1" in text and "enough" in text for text in run(work, 3))


def test_mismatch_and_timeout() -> None:
    def differ(group: arraycomm.Group) -> None:
        with pytest.raises(arraycomm.CollectiveMismatch):
            group.all_reduce(np.ones(1 + group.rank))

    run(differ, 3)
    with pytest.raises(arraycomm.CollectiveTimeout):
        run(lambda group: group.recv(1 - group.rank, like=np.zeros(1)), 2, timeout=0.2)


def test_survivors_go_on() -> None:
    def work(group: arraycomm.Group) -> float:
        if group.rank == 1:
            return 0.0
        with pytest.raises(arraycomm.PeerLost):
            group.barrier()
        rest, again = group.subgroup([0, 2], "rest"), group.shrink()
        assert again.ranks == (0, 2)
        return float(rest.all_reduce(again.all_reduce(np.ones(1)))[0])

    assert run(work, 3) == [4.0, 0.0, 4.0]


_INTERRUPTED = """
import os, signal, threading, time, arraycomm

def work(group):
    group.barrier()
    if group.rank == 0:
        os.kill(os.getpid(), signal.SIGINT)
    if group.rank == 1:
        while True:
            pass
    if group.rank == 2:
        arraycomm.run(lambda inner: inner.recv(like=memoryview(bytearray(1))), 2)
    group.barrier()

try:
    arraycomm.run(work, 4)
except KeyboardInterrupt:
    print("interrupted", {thread.name for thread in threading.enumerate()})
"""


def test_ctrl_c_ends_all_ranks() -> None:
    """One waits, one runs Python code, one has ranks of its own."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "interrupted {'MainThread'}\n", done.stdout + done.stderr


def test_the_late_rank_shows_its_own_stack(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has waited" in record.getMessage():
                told.set()

    def where_it_is(group: arraycomm.Group) -> None:
        if group.rank == 1:
            assert told.wait(60)
        group.barrier()

    monkeypatch.setenv("ARRAYCOMM_WAIT_NOTICE", "0.1")
    handler = Told()
    logging.getLogger("arraycomm").addHandler(handler)
    try:
        run(where_it_is, 3)
    finally:
        logging.getLogger("arraycomm").removeHandler(handler)
    assert "rank 1 is here:" in caplog.text and "where_it_is" in caplog.text and "thread MainThread" not in caplog.text


@pytest.mark.parametrize(("fn", "size", "error", "text"), [
    ("no function", 2, TypeError, "function"), (everything, 0, ValueError, "at least one"),
    (everything, -1, ValueError, "at least one"), (everything, True, TypeError, "whole number"),
    (everything, 2.0, TypeError, "whole number")])
def test_arguments(fn: Callable[..., Any], size: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(fn, size)


def test_too_many_descriptors() -> None:
    code = ("import arraycomm, os, resource, threading\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); before = len(os.listdir('/proc/self/fd'))\n"
            "try: arraycomm.run(lambda group: None, 100)\n"
            "except arraycomm.ResourceError as error: print(error)\n"
            "print(len(os.listdir('/proc/self/fd')) - before, threading.active_count(), arraycomm.run(lambda g: g.size, 2))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "ulimit -n" in done.stdout and done.stdout.endswith("\n0 1 [2, 2]\n"), done.stdout + done.stderr


def test_signal_handlers_stay_the_programs() -> None:
    before = signal.getsignal(signal.SIGINT)
    run(lambda group: group.barrier(), 2)
    assert signal.getsignal(signal.SIGINT) is before

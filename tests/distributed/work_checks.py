"""Checks of Work, futures and barriers."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np

import arraycomm.distributed as dist
from arraycomm.distributed.future import Future
from arraycomm.distributed.operations import work as works
from tests.present import present

from ..logged import logged
from ..threads import at_once
from .checks import Library, check, same
from .object_checks import refused


@check
def work(lib: Library) -> None:
    x = lib.array([1.0, 2.0])
    done = dist.all_reduce(x, async_op=True)
    assert isinstance(done, dist.Work) and done.wait() is True and done.wait(timedelta(seconds=5)) is True
    assert done.is_completed() and done.is_success() and done.exception() is None
    result = done.result()
    assert len(result) == 1 and result[0] is x
    done.synchronize()
    done.block_current_stream()
    assert dist.Work.unbox(done.boxed()) is done
    refused(RuntimeError, "may only be called on work objects that correspond to a recv", done.source_rank)
    refused(TypeError, "datetime.timedelta", lambda: done.wait(3))
    refused(TypeError, "boxed()", lambda: dist.Work.unbox(x))
    barrier = dist.barrier(async_op=True)
    assert barrier is not None and barrier.wait() and barrier.result() == [] and barrier.get_future().wait() == []
    outs = [lib.zeros(2) for _ in range(lib.size)]
    gathered = dist.all_gather(outs, x, async_op=True)
    assert gathered is not None and [one is out for one, out in zip(gathered.result(), outs, strict=True)] == [True] * 3


@check
def work_that_is_not_waited_for(lib: Library) -> None:
    """is_completed() alone brings the result to where it belongs."""
    x = lib.strided(np.ones((2, 3)))
    pending = dist.all_reduce(x, async_op=True)
    assert pending is not None
    end = time.monotonic() + 20
    while not pending.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    same(x, np.full((2, 3), 3.0))


@check
def work_that_nobody_keeps(lib: Library) -> None:
    """Its results come all the same, those that are copied to where they belong among them; what that means is said once."""
    x, outs = lib.strided(np.ones((2, 3))), [lib.zeros(2) for _ in range(lib.size)]
    works._warned.clear()
    with logged() as lines:
        dist.all_reduce(x, async_op=True)
        dist.all_gather(outs, lib.array([1.0, 2.0]), async_op=True)
        end = time.monotonic() + 20
        while (float(x.sum()) != 6.0 * lib.size or any(float(out.sum()) != 3.0 for out in outs)) and time.monotonic() < end:
            time.sleep(0.001)
    assert len(lines) == 1 and "was dropped" in lines[0], lines
    same(x, np.full((2, 3), lib.size))
    for out in outs:
        same(out, np.array([1.0, 2.0]))


def _summed(x: Any, pending: dist.Work, _: int) -> float:
    pending.wait()
    return float(x.sum())


@check
def work_that_many_threads_wait_for(lib: Library) -> None:
    """Whoever returns from wait() finds the result where it belongs."""
    for _ in range(20):
        x = lib.strided(np.ones((40, 30)))
        pending = dist.all_reduce(x, async_op=True)
        assert pending is not None
        assert at_once(4, partial(_summed, x, pending)) == [3600.0] * 4


@check
def futures(lib: Library) -> None:
    x = lib.array([1.0])
    pending = dist.all_reduce(x, async_op=True)
    assert pending is not None
    future = pending.get_future()
    assert (type(future) is Future) == (lib.name != "torch") and hasattr(type(future), "add_done_callback")
    called = threading.Event()
    future.add_done_callback(lambda done: called.set())
    double = future.then(lambda done: done.value()[0] * 2)
    same(double.wait(), [6.0])
    assert future.wait()[0] is x and future.done() and called.wait(20) and future.value()[0] is x
    assert pending.get_future_result().wait() == 0
    for message in (dist.isend(x, lib.rank), dist.irecv(x, lib.rank)):
        refused(RuntimeError, "getFuture not implemented", present(message).get_future)
        present(message).wait()


@check
def a_wait_that_ends_early(lib: Library) -> None:
    """The operation goes on, and one may wait again."""
    if lib.rank == 0:
        time.sleep(0.3)
    x = lib.array([1.0])
    pending = dist.all_reduce(x, async_op=True)
    assert pending is not None
    if lib.rank:
        try:
            pending.wait(timedelta(milliseconds=20))
        except RuntimeError as error:
            assert isinstance(error, TimeoutError) and "continues" in str(error)
    assert pending.wait()
    same(x, [3.0])


@check
def monitored_barriers(lib: Library) -> None:
    dist.monitored_barrier()
    group = dist.new_group([1, 2])
    if lib.rank:
        dist.monitored_barrier(group=group, timeout=timedelta(seconds=20))
    for wait_all, late, text in ((True, (1, 2), "Ranks 1, 2 failed to pass monitoredBarrier in 300 ms"),
                                 (False, (1, 2), "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 300 ms"),
                                 (True, (2,), "Rank 2 failed to pass monitoredBarrier in 300 ms")):
        dist.barrier()
        if lib.rank in late:
            time.sleep(0.5)
        refused(RuntimeError, text, lambda: dist.monitored_barrier(timeout=timedelta(milliseconds=300), wait_all_ranks=wait_all))  # noqa: B023
    dist.barrier()
    mine = f"Rank {lib.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
    if lib.rank != 1:
        refused(RuntimeError, mine if lib.rank else "Rank 1 failed",
                lambda: dist.monitored_barrier(timeout=timedelta(milliseconds=300)))
    else:
        time.sleep(0.5)
        refused(RuntimeError, mine, lambda: dist.monitored_barrier(timeout=timedelta(milliseconds=300)))
    dist.barrier()
    dist.monitored_barrier(wait_all_ranks=True)


@check
def barriers(lib: Library) -> None:
    """Nobody leaves before the last has come."""
    came: list[Any] = [None] * lib.size
    time.sleep(0.05 * lib.rank)
    entered = time.monotonic()
    dist.barrier(timeout=timedelta(seconds=20), device_ids=[0])
    left = time.monotonic()
    dist.all_gather_object(came, entered)
    assert left >= max(came)  # one clock for all processes of a host
    assert dist.barrier() is None

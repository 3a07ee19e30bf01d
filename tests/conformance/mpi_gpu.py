"""Tasks: arrays on CUDA devices over an MPI library that says that it takes them. Over the stand-ins."""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from arraycomm.backends.mpi import gpu
from arraycomm.core.cuda import staged
from arraycomm.core.errors import CollectiveMismatch, DeviceError, DistError
from tests.logged import logged
from tests.standin import arrays

from .cuda import calls_on, carry_out
from .data import contents
from .expect import expect, given
from .worlds import Context


def _calls(context: Context, count: int, later: bool) -> None:
    """Everything that only moves, from arrays that are written late, into new ones and given ones."""
    group, size, root = context.group, context.size, context.size - 1
    x, calls = calls_on(context, "cuda", count, "bfloat16")
    moves = {name: (call, want) for name, call, want in calls if "reduce" not in name}
    whole, place = (given(context, "cuda", contents("bfloat16", (size * count,), context.rank, 61)) for _ in range(2))
    moves["broadcast in place"] = (lambda **how: group.broadcast(place, root, out=place, **how), moves["broadcast"][1])
    moves["all_to_all with out"] = (lambda **how: group.all_to_all(x, out=whole, **how), moves["all_to_all"][1])
    carry_out(context, f"of {count}", x, [(name, *move) for name, move in moves.items()], later=later)


def moved(context: Context) -> None:
    """The library has them: no memory of the host is taken, nobody is warned."""
    with logged() as lines:
        for count in (1, 1000, 100_000):
            for later in (False, True):
                _calls(context, count, later)
    taken = [pool for pool in staged._pools if pool._free or pool._kept]
    context.check(not taken and not lines, f"{len(taken)} pools of pinned memory, {lines}")


def order_of_calls(context: Context) -> None:
    """A result that is still to be copied up is there before the library reads it, and the other way round."""
    group, size = context.group, context.size
    x = given(context, "cuda", np.full(500, context.rank + 1.0, np.float32))
    works = [group.all_reduce(x, out=x, async_op=True)]
    gathered = group.all_gather(x, async_op=True)
    works.append(group.broadcast(x, size - 1, out=x, async_op=True))
    works.append(group.all_reduce(x, "max", out=x, async_op=True))
    total = size * (size + 1) / 2
    expect(context, "all_gather of a staged result", gathered.result(60), np.full(500 * size, total, np.float32))
    for work in works:
        work.wait(60)
    context.check((x.numpy() == total).all(), f"in the end {x.numpy()[:3]}, want {total}")
    y = given(context, "cuda", np.full(500_000, context.rank + 1.0, np.float32))
    if context.rank == size - 1:
        time.sleep(0.2)  # it comes to the others when they are long at the next call
    group.broadcast(y, size - 1, out=y, async_op=True)  # whose Work nobody keeps
    summed = group.all_reduce(y).numpy()
    context.check((summed == size * size).all(), f"the sum of what was broadcast: {summed[:3]}, want {size * size}")


def refused(context: Context, word: str) -> None:
    """They are staged, which is said once a group, and why. One rank has tried it for all of them."""
    trials: list[str] = []
    trial = gpu.trial
    gpu.trial = lambda path, device: trials.append(path) or trial(path, device)  # type: ignore[assignment, func-returns-value]
    with logged() as lines:
        for later in (False, True):
            _calls(context, 1000, later)
    why = word if context.rank == 0 else f"rank 0 of group {context.group.name!r} has tried it"
    context.check(len(lines) == 1 and "pinned host memory" in lines[0] and why in lines[0], f"{lines}")
    context.check(len(trials) == (context.rank == 0), f"{len(trials)} trials by rank {context.rank}")
    context.check(staged._pools and staged._pools[0]._kept > 0, "pinned memory was used")


def asynchronous_first(context: Context) -> None:
    """A new group's ranks do not wait for each other in a call that does not wait; and then one that does is the library's."""
    group = context.group.split(0)
    assert group is not None
    x, y = given(context, "cuda", np.full(1000, context.rank, np.int32)), given(context, "cuda", np.zeros(1000, np.int32))
    if context.rank == 1:
        group.recv(0, like=np.zeros(1))  # which comes when rank 0 has left its call
    work = group.broadcast(x if context.rank == 0 else y, 0, out=y, async_op=True)
    if context.rank == 0:
        group.send(np.zeros(1), 1)
    mixture = group.all_gather(x, async_op=context.rank == 0)
    work.wait(60)
    want = np.repeat(np.arange(context.size, dtype=np.int32), 1000)
    expect(context, "broadcast", y, np.zeros(1000, np.int32), like=x)
    expect(context, "all_gather", mixture.result(60) if context.rank == 0 else mixture, want, like=x)
    pool, taken = staged._pools[0], []
    take = pool.take
    pool.take = lambda nbytes: taken.append(nbytes) or take(nbytes)  # type: ignore[method-assign, func-returns-value]
    expect(context, "all_gather by the library", group.all_gather(x), want, like=x)
    context.check(not taken, f"pinned memory was taken: {taken}")
    group.all_reduce(x)
    context.check(bool(taken), "a reduction took no pinned memory")
    del pool.take
    group.close()


def captured_first(context: Context) -> None:
    """What a new group refuses because its stream is captured has sent nothing, the question among the ranks neither."""
    group = context.group.split(0)
    assert group is not None
    x = given(context, "cuda", np.full(1000, context.rank, np.int32))
    y = given(context, "cuda", np.zeros(1000 * context.size, np.int32))
    if context.rank == 0:
        arrays.cuda().tell("standin_capture", arrays.LEGACY)
        context.raises("a captured stream", DeviceError, "CUDA graph", lambda: group.all_gather(x, out=y, async_op=True))
        arrays.cuda().tell("standin_capture", 0)
    expect(context, "all_gather", group.all_gather(x, out=y), np.repeat(np.arange(context.size, dtype=np.int32), 1000), like=x)
    group.close()


def unstartable(context: Context) -> None:
    """The rank that is to make the trial for all cannot: all of them stage."""
    group, known, trial = context.group.split(0), list(gpu._answers), gpu.trial
    assert group is not None
    gpu._answers.clear()

    def raises(path: str, device: int) -> str:
        raise OSError(24, "Too many open files")

    gpu.trial = raises
    x = given(context, "cuda", np.full(1000, context.rank, np.int32))
    with logged() as lines:
        got = group.all_gather(x)
    gpu.trial, gpu._answers[:] = trial, known
    expect(context, "all_gather", got, np.repeat(np.arange(context.size, dtype=np.int32), 1000), like=x)
    why = "Too many open files" if context.rank == 0 else "rank 0 of group"
    context.check(len(lines) == 1 and "pinned host memory" in lines[0] and why in lines[0], f"{lines}")
    group.close()


def partly(context: Context) -> None:
    """One rank cannot: collectives are staged everywhere, and messages arrive from either kind at either."""
    if context.rank == 1:
        os.environ["STANDIN_MPI"] = "no"
    right, left = (context.rank + 1) % context.size, (context.rank - 1) % context.size
    with logged() as lines:
        for count in (0, 1, 100_000):
            mine, theirs = (contents("float32", (count,), rank, 63) for rank in (context.rank, left))
            work = context.group.isend(given(context, "cuda", mine), right)
            got = context.group.recv(left, like=given(context, "cuda", np.zeros_like(mine)))
            expect(context, f"{count} from {left}", got.array, theirs)
            work.wait(60)
        _calls(context, 1000, False)
    why = "built without CUDA" if context.rank == 1 else "rank 1 cannot"
    context.check(len(lines) == 1 and why in lines[0], f"{lines}")


def stuck(context: Context) -> None:
    """MPI is given an array when what the program enqueued before has ended; the wait for that counts."""
    go, group = threading.Event(), context.group.split(0)
    assert group is not None
    x = given(context, "cuda", np.ones(1000, np.float32))
    group.all_gather(x)
    if context.rank == 0:
        arrays.compute(lambda: go.wait(60), arrays.current_stream())
    context.raises("what cannot end", DistError, "device 0 has not come to it in time",
                   lambda: group.all_gather(x, timeout=0.5 if context.rank == 0 else 20.0))
    go.set()
    group.close()


def mixed(context: Context) -> None:
    """One rank's array on a device, another's on the host, in one collective: refused on all ranks."""
    group = context.group.split(0)
    assert group is not None
    x = given(context, "cuda", np.ones(5, np.float32))
    group.broadcast(x, 0)
    context.raises("arrays on device and host", CollectiveMismatch,
                   "" if context.rank else "all ranks' arrays must be on GPUs, or none",
                   lambda: group.broadcast(x if context.rank == 0 else np.ones(5, np.float32), 0))
    group.close()

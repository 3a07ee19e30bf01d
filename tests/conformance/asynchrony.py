"""Tasks: operations in flight, several at a time, on one group and on several."""

from __future__ import annotations

import threading
import time
from functools import partial

import numpy as np

import arraycomm

from .data import contents, reduced
from .expect import expect, given
from .worlds import Context


def in_flight(context: Context, framework: str, number: int = 12) -> None:
    """Several operations started before any is waited for; waited for in another order."""
    group, size, me = context.group, context.size, context.rank
    inputs = [[contents("float32", (100 * i + 1,), rank, 31 + i) for rank in range(size)] for i in range(number)]
    xs = [given(context, framework, row[me]) for row in inputs]
    sums = [group.all_reduce(x, async_op=True) for x in xs]
    gathered = [group.all_gather(x, async_op=True) for x in xs]
    copies = [group.broadcast(x, i % size, async_op=True) for i, x in enumerate(xs)]
    barrier = group.barrier(async_op=True)
    for i in reversed(range(number)):
        expect(context, f"async broadcast {i}", copies[i].result(60), inputs[i][i % size], like=xs[i], shared=True)
        expect(context, f"async all_gather {i}", gathered[i].result(60), np.concatenate(inputs[i]), shared=True)
        expect(context, f"async all_reduce {i}", sums[i].result(60), reduced("sum", inputs[i]), shared=True)
    assert barrier is not None
    barrier.wait(60)
    context.check(barrier.done() and all(work.done() for work in sums), "waited for, so done")
    context.check(sums[0].result() is sums[0].result(), "result() gives one array")


def every_kind(context: Context) -> None:
    """async_op of each collective."""
    group, size, me = context.group, context.size, context.rank
    inputs = [contents("int32", (size, 50), rank, 51) for rank in range(size)]
    x = inputs[me].copy()
    works = {
        "reduce": group.reduce(x, 0, async_op=True),
        "gather": group.gather(x, 0, async_op=True),
        "scatter": group.scatter(x if me == 0 else None, 0, like=x[:1], async_op=True),
        "reduce_scatter": group.reduce_scatter(x, async_op=True),
        "all_to_all": group.all_to_all(x, async_op=True),
        "uneven": group.all_gather(x[: me + 1], uneven=True, async_op=True) if size <= 5 else None,
    }
    got = {name: work.result(60) for name, work in works.items() if work is not None}
    if me == 0:
        expect(context, "async reduce", got["reduce"], reduced("sum", inputs))
        expect(context, "async gather", got["gather"], np.concatenate(inputs))
    expect(context, "async scatter", got["scatter"], inputs[0][me : me + 1])
    expect(context, "async reduce_scatter", got["reduce_scatter"], reduced("sum", inputs)[me : me + 1])
    expect(context, "async all_to_all", got["all_to_all"], np.concatenate([a[me : me + 1] for a in inputs]))
    if "uneven" in got:
        expect(context, "async uneven", got["uneven"], np.concatenate([a[: r + 1] for r, a in enumerate(inputs)]))


def out_and_order(context: Context) -> None:
    """A later operation on an earlier one's out sees its result: the order of one group is the order of the calls."""
    x = np.full(5000, context.rank + 1.0)
    works = [context.group.all_reduce(x, "max" if i else "sum", out=x, async_op=True) for i in range(5)]
    context.group.all_reduce(x, "min", out=x)
    total = context.size * (context.size + 1) / 2
    context.check((x == total).all(), f"after five in place: {x[:3]}, want {total}")
    for work in works:
        context.check(work.result(60) is x, "result of an operation with out")


def interleaved(context: Context, turns: int = 40) -> None:
    """Synchronous and asynchronous operations of all lengths, in one order; some are asked for, others forgotten."""
    group, kept = context.group, []
    x = np.zeros(1)
    lengths = (1, 20_000, 3, 300_000)
    for i in range(turns):
        y = np.full(lengths[i % 4], float(i))
        work = group.all_reduce(y, out=y, async_op=True)
        if i % 3 == 0:
            kept.append((i, y, work))
        if i % 5 == 0:
            x = group.all_reduce(np.full(7, 1.0 + i))
            context.check((x == context.size * (1.0 + i)).all(), f"synchronous {i}: {x[:3]}")
        if i % 7 == 0:
            group.barrier(async_op=True)
    for i, y, work in kept:
        work.wait()
        context.check((y == context.size * float(i)).all(), f"asynchronous {i}: {y[:3]}")
    group.barrier()


def left_alone(context: Context, length: int) -> None:
    """What was begun goes on though its caller only computes: nothing is called until the result is seen in `out`."""
    x, out = np.full(length, 2.0), np.zeros(length)
    work = context.group.all_reduce(x, out=out, async_op=True)
    following = context.group.broadcast(np.full(3, float(context.rank)), context.size - 1, async_op=True)
    wanted, end = 2.0 * context.size, time.monotonic() + 60
    while not (out == wanted).all() and time.monotonic() < end:
        pass
    context.check((out == wanted).all(), f"after a minute: {out[:3]}")
    work.wait(60)
    context.check(following.result(60).tolist() == [context.size - 1.0] * 3, "the operation after it")


def patience(context: Context) -> None:
    """wait(timeout) leaves an operation that others have not called yet, and so does done(); it goes on, and the order stays."""
    group, me = context.group, context.rank
    go = np.zeros(1)
    if me != 0:
        group.recv(0, tag=5, out=go)
    x = np.full(5, me + 1.0)
    first, second = group.all_reduce(x, async_op=True), group.all_reduce(x, "max", async_op=True)
    if me == 0 and context.size > 1:
        for work in (second, first):
            context.raises("what nobody else has called", TimeoutError, "continues", partial(work.wait, 0.002))
        context.check(not first.done() and not second.done(), "done before the others came")
        for rank in range(1, context.size):
            group.isend(go, rank, tag=5)  # forgotten, and sent all the same
    total = context.size * (context.size + 1) / 2
    context.check(group.all_reduce(x, "min").tolist() == [1.0] * 5, "a synchronous operation behind them")
    context.check(first.done() and second.done(), "not ended, though a later operation is")
    context.check(first.result().tolist() == [total] * 5, f"the first: {first.result()}")
    context.check(second.result().tolist() == [float(context.size)] * 5, f"the second: {second.result()}")


def forgotten_at_the_end(context: Context) -> None:
    """Operations under way when their group is closed end with it, and say so for good."""
    group = context.group.split(0)
    assert group is not None
    receive = group.irecv(None, tag=9, like=np.zeros(3))
    group.barrier()
    never = group.all_reduce(np.ones(3), async_op=True) if context.rank == 0 and context.size > 1 else None
    context.group.barrier()
    group.close()
    for work in filter(None, (receive, never)):
        for _ in range(2):
            context.raises("its group was closed", arraycomm.DistError, "closed", work.wait)
        context.check(work.done(), "ended, so done")
    context.group.barrier()


def several_groups(context: Context, number: int = 3) -> None:
    """Groups with the same members have operations in flight at the same time, started in different orders."""
    groups = [context.group.split(0, name=f"twin {i}") for i in range(number)]
    order = [(context.rank + i) % number for i in range(number)]
    works = {}
    for i in order:
        group = groups[i]
        assert group is not None
        works[i] = [group.all_reduce(np.full(2000, 1.0 + i), async_op=True),
                    group.all_gather(np.full(10, context.rank + 100 * i), async_op=True)]
    for i in reversed(order):
        context.check((works[i][0].result(60) == context.size * (1.0 + i)).all(), f"all_reduce of twin {i}")
        want = np.repeat(np.arange(context.size), 10) + 100 * i
        context.check(np.array_equal(works[i][1].result(60), want), f"all_gather of twin {i}")
    for group in groups:
        assert group is not None
        group.close()


def threads(context: Context) -> None:
    """Each of two threads has a group of its own, at the same time."""
    groups = [context.group.split(0), context.group.split(0)]
    problems: list[str] = []

    def work(number: int) -> None:
        group = groups[number]
        assert group is not None
        for i in range(50):
            y = group.all_reduce(np.full(300, number + i))
            if not (y == context.size * (number + i)).all():
                problems.append(f"thread {number}, call {i}: {y[:3]}")

    running = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    context.check(not problems and not any(thread.is_alive() for thread in running), f"threads: {problems[:3]}")
    for group in groups:
        assert group is not None
        group.close()

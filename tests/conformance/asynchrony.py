"""Tasks: operations in flight, several at a time, on one group and on several."""

from __future__ import annotations

import threading

import numpy as np

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

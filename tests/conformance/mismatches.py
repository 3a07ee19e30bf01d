"""Tasks: ranks that call different things. Each uses a group of its own, because the mismatch ends it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import arraycomm

from .worlds import Context

_X = np.arange(24, dtype=np.float32)
_Call = Callable[[arraycomm.Group, bool, Any, Any], Any]

# Each: what rank 1 (odd=True) does otherwise; x is the input and out the output.
CASES: dict[str, _Call] = {
    "count": lambda g, odd, x, out: g.all_reduce(x[:20] if odd else x, out=out[:20] if odd else out),
    "dtype": lambda g, odd, x, out: g.all_reduce(x.view(np.int32) if odd else x, out=out.view(np.int32) if odd else out),
    "shape": lambda g, odd, x, out: g.all_reduce(x.reshape(4, 6) if odd else x, out=out.reshape(4, 6) if odd else out),
    "op": lambda g, odd, x, out: g.all_reduce(x, "max" if odd else "sum", out=out),
    "factor": lambda g, odd, x, out: g.all_reduce(x, arraycomm.premul_sum(2.0 if odd else 3.0), out=out),
    "kind": lambda g, odd, x, out: g.broadcast(x, 0, out=out) if odd else g.all_reduce(x, out=out),
    "barrier": lambda g, odd, x, out: g.barrier() if odd else g.all_reduce(x, out=out),
    "root of broadcast": lambda g, odd, x, out: g.broadcast(x, 1 if odd else 0, out=out),
    "root of broadcast elsewhere": lambda g, odd, x, out: g.broadcast(x, 0 if odd else 1, out=out),  # with two, nobody gives
    "root of reduce": lambda g, odd, x, out: g.reduce(x, 1 if odd else 0, out=out),
    "count of broadcast": lambda g, odd, x, out: g.broadcast(x[:3] if odd else x, 0, out=out[:3] if odd else out),
    "count of all_gather": lambda g, odd, x, out: g.all_gather(x[:3] if odd else x[:4]),
    "count of gather": lambda g, odd, x, out: g.gather(x[:3] if odd else x[:4], 0),
    "count of scatter": lambda g, odd, x, out: g.scatter(x[:g.size * 2] if g.rank == 0 else None, 0,
                                                         like=None if g.rank == 0 else x[:1] if odd else x[:2]),
    "count of all_to_all": lambda g, odd, x, out: g.all_to_all(x[: g.size * (1 if odd else 2)]),
    "inclusive": lambda g, odd, x, out: g.scan(x, out=out) if odd else g.exscan(x, out=out),
    "shape of scan": lambda g, odd, x, out: g.scan(x.reshape(4, 6) if odd else x, out=out.reshape(4, 6) if odd else out),
    "op of exscan": lambda g, odd, x, out: g.exscan(x, "max" if odd else "sum", out=out),
    "count of reduce_scatter": lambda g, odd, x, out: g.reduce_scatter(x[: g.size * (1 if odd else 2)]),
    "counts": lambda g, odd, x, out: g.reduce_scatter(
        x[: 2 * g.size], counts=[1, 3, *[2] * (g.size - 2)] if odd else [2] * g.size),
}
# The root leaves these at once, and so does who thinks it is the root: their error comes with the next call.
# Over links, so do those who give in a gather, and scans.
_ONE_WAY = ("root of broadcast", "count of broadcast", "count of scatter", "count of gather", "inclusive", "shape of scan",
            "op of exscan")


def matrix(context: Context, cases: list[str] | None = None) -> None:
    """CollectiveMismatch on all ranks, with both sides in the text, and no buffer touched by a call that raises."""
    for name in cases or CASES:
        _one(context, name)


def _one(context: Context, name: str) -> None:
    group = context.group.split(0, name=f"mismatch of {name}")
    assert group is not None
    x, out = _X.copy(), np.full(24, 9, np.float32)
    returned = False
    try:
        CASES[name](group, context.rank == 1, x, out)
        returned = name in _ONE_WAY
        if returned:
            group.barrier()
    except arraycomm.CollectiveMismatch as error:
        text = str(error)
        context.check(re.search(rf"rank {context.rank}\b", text) and group.name in text, f"{name}: text {text!r}")
        context.check(error.ranks, f"{name}: no culprits in {text!r}")
    except Exception as error:  # the finding is that it is another one
        context.check(False, f"{name}: {type(error).__name__}({error})")
    else:
        context.check(False, f"{name}: no error")
    context.check((x == _X).all() and (returned or (out == 9).all()), f"{name}: buffers were touched: {out[:6]}")
    context.raises(f"{name}: afterwards", arraycomm.DistError, "", partial(group.all_reduce, _X.copy()))
    group.close()
    y = context.group.all_reduce(np.ones(2))
    context.check(y.tolist() == [context.size] * 2, f"{name}: the other group goes on: {y}")


# What the root does after a broadcast that rank 1 takes for another.
_AFTERWARDS: dict[str, Callable[[arraycomm.Group], Any]] = {
    "barrier": lambda g: g.barrier(),
    "all_reduce": lambda g: g.all_reduce(_X.copy(), timeout=60),
    "asynchronous": lambda g: g.all_gather(_X.copy(), async_op=True).wait(60),
    "broadcasts without end": lambda g: [g.broadcast(_X.copy(), timeout=60) for _ in range(10_000)],
    "scatters without end": lambda g: [g.scatter(np.zeros(g.size), like=np.zeros(1)) for _ in range(10_000)],
    "another root": lambda g: g.broadcast(_X.copy(), g.size - 1),
    "a message": lambda g: g.recv(1, like=_X.copy(), timeout=60),
    "close": lambda g: g.close(),
}


def root_ahead(context: Context) -> None:
    """A root that has left its broadcast hears of the mismatch whatever it does next, and once."""
    for name, afterwards in _AFTERWARDS.items():
        group = context.group.split(0, name=f"ahead of {name}")
        assert group is not None
        x, out = _X.copy(), np.full(24, 9, np.float32)
        refused = context.rank == 1
        try:
            group.broadcast(x[:3] if refused else x, 0, out=out[:3] if refused else out)
            context.check(not refused, f"{name}: rank 1 took what it did not ask for")
            context.check((out == _X).all() or context.rank == 0, f"{name}: {out[:6]}")
            afterwards(group)
            if name != "close":
                group.barrier()  # a call that does not wait for all may still end well
        except arraycomm.CollectiveMismatch as error:
            text = str(error)
            context.check("of 3 float32, root 0" in text and "of 24 float32, root 0" in text, f"{name}: text {text!r}")
            context.check(not refused or (out == 9).all(), f"{name}: {out[:6]}")
        else:
            context.check(False, f"{name}: no error")
        group.close()
        context.check(group.closed, f"{name}: not closed")
        context.group.barrier()


def late(context: Context) -> None:
    """The same with other operations before it, in flight, and asynchronous."""
    group = context.group.split(0)
    assert group is not None
    fine = [group.all_reduce(np.ones(500), async_op=True) for _ in range(4)]
    bad = group.all_reduce(np.ones(20 if context.rank == 1 else 30), async_op=True)
    for work in fine:
        try:
            context.check((work.result(60) == context.size).all(), "operations before the mismatch are good")
        except arraycomm.CollectiveMismatch:  # the others were ahead, and their finding came before this one's end
            continue
    context.raises("late", arraycomm.CollectiveMismatch, "(?=.*20)(?=.*30)", lambda: bad.wait(60))
    group.close()


def empty(context: Context) -> None:
    """empty() ends with a reduction of its own, which is not taken for one of the caller's."""
    twin = context.group.split(0)
    assert twin is not None
    call = (lambda: twin.all_reduce(np.ones(1, np.int32), "min")) if context.rank else (lambda: twin.empty(10))
    context.raises("empty", arraycomm.CollectiveMismatch, "(?=.*rank 0)(?=.*called empty #)", call)
    twin.close()


def uneven_disagreement(context: Context) -> None:
    """Counts that senders and receivers see differently, and arrays that differ beyond the first dimension."""
    size, me = context.size, context.rank
    for label, call in [
        ("recv_counts", lambda: context.group.all_to_all(
            np.zeros((size, 2)), send_counts=[1] * size, recv_counts=[2 if me == 1 else 1] * size)),
        ("row width", lambda: context.group.all_gather(np.zeros((2, 3 if me == 1 else 4)), uneven=True)),
        ("row dtype", lambda: context.group.all_gather(np.zeros((2, 3), "f4" if me == 1 else "f8"), uneven=True)),
    ]:
        context.raises(label, arraycomm.CollectiveMismatch, "", call)
        context.check(context.group.all_reduce(np.ones(1)).tolist() == [size], f"{label}: the group goes on")

"""Tasks of the property tests: calls that are described by data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import movement, reductions
from .data import contents
from .expect import expect, slack
from .worlds import Context

_REDUCING = {"all_reduce": reductions.all_reduce, "reduce": reductions.reduce,
             "reduce_scatter": reductions.reduce_scatter}
_ROOTED = {"broadcast": movement.broadcast, "gather": movement.gather, "scatter": movement.scatter}
_CUTTING = ("reduce_scatter", "scatter", "all_to_all")


def run(context: Context, calls: Sequence[dict[str, Any]]) -> None:
    for call in calls:
        _one(context, **call)


def _one(context: Context, kind: str, dtype: str, op: str, shape: tuple[int, ...], root: int, framework: str,
         rows: list[int]) -> None:
    if kind in _CUTTING and not shape:
        shape = (1,)
    if kind in _REDUCING:
        close = slack(context, dtype, op, rough=False, exact=False)
        _REDUCING[kind](context, framework, dtype, op, 2.0, shape, False, close)
    elif kind in _ROOTED:
        _ROOTED[kind](context, framework, dtype, shape, root % context.size)
    elif kind == "all_gather":
        movement.all_gather(context, framework, dtype, shape or (1,))
    elif kind == "all_to_all":
        movement.all_to_all(context, framework, dtype, shape)
    elif kind == "uneven_scatter":
        reductions.uneven_scatter(context, [rows], exact=False)
    elif kind == "uneven_gather":
        movement.uneven_gather(context, framework, dtype, [rows[r % len(rows)] for r in range(context.size)])
    else:
        ranks = range(context.size)
        table = [[rows[(s * 3 + d) % len(rows)] for d in ranks] for s in ranks]
        movement.uneven_all_to_all(context, framework, dtype, table, tell=bool(root % 2))


def exchange(context: Context, messages: Sequence[tuple[int, int, int, int, str]]) -> None:
    """(source, destination, tag, count, dtype): all sent at once, received in the order of the list."""
    group, me = context.group, context.rank
    arrays = [contents(dtype, (count,), source, 60 + i, True)
              for i, (source, _, _, count, dtype) in enumerate(messages)]
    sends = [group.isend(arrays[i].copy(), dest, tag) for i, (source, dest, tag, _, _) in enumerate(messages)
             if source == me]
    for i, (source, dest, tag, _, _) in enumerate(messages):
        if dest == me:
            got = group.recv(source, tag, like=arrays[i].copy() * 0)
            expect(context, f"message {i} of {messages}", got.array, arrays[i])
    for work in sends:
        work.wait(60)

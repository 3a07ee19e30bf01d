"""Tasks: Python objects instead of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from .worlds import Context


def everywhere(context: Context) -> None:
    """Every operation on objects, with each root, short and long; what one rank cannot send is an error on all."""
    group, me, size = context.group, context.rank, context.size
    mine: list[Any] = [{"from": rank, "x": [(), 2**80, b"x" * 3000 * rank], "array": np.arange(rank)} for rank in range(size)]
    context.check(repr(group.all_gather_object(mine[me])) == repr(mine), "all_gather_object")
    for root in range(size):
        gathered = group.gather_object(mine[me], root)
        context.check(repr(gathered) == repr(mine if me == root else None), f"gather_object to {root}")
        context.check(repr(group.broadcast_object(mine[me], root)) == repr(mine[root]), f"broadcast_object from {root}")
        part = group.scatter_objects(mine if me == root else None, root)
        context.check(repr(part) == repr(mine[me]), f"scatter_objects from {root}")
    if me:
        group.send_object(mine[me], 0, tag=me % 2)
    for rank in range(1, size if me == 0 else 0):
        found, source = group.recv_object(rank if rank % 2 else None, tag=rank % 2)
        context.check(repr(found) == repr(mine[source]) and source % 2 == rank % 2, f"recv_object of {rank}")
    refused(context)


def refused(context: Context) -> None:
    group, me, size = context.group, context.rank, context.size
    odd = size - 1
    for label, kind, call in (("unknown object", TypeError if me == odd else RuntimeError,
                               lambda: group.all_gather_object(object() if me == odd else 1)),
                              ("pickle on one rank", ValueError if size > 1 else None,
                               lambda: group.all_gather_object(1, allow_pickle=me == odd))):
        try:
            call()
        except Exception as error:
            context.check(kind is not None and isinstance(error, kind), f"{label}: {error!r}")
        else:
            context.check(kind is None, f"{label} was accepted")
    context.check(group.all_gather_object(range(me), allow_pickle=True) == [range(rank) for rank in range(size)], "pickled")
    context.check(group.all_reduce(np.ones(2)).tolist() == [size] * 2, "the group goes on")

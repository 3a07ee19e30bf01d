"""Tasks: arrays on a device through pinned memory that all ranks reach. Over the stand-in for CUDA's runtime."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from tests.logged import logged
from tests.standin import arrays

from .cuda import every_kind
from .expect import expect, given
from .worlds import Context


def _lane(context: Context) -> Any:
    mover: Any = context.group._movers[2]
    return mover._lane(0)


def _reduce(context: Context, what: str, **how: Any) -> None:
    """A long all_reduce: of several pieces."""
    x = given(context, "cuda", np.full(3000, context.rank + 1.0, np.float32))
    y = context.group.all_reduce(x, **how)
    size = context.size
    expect(context, what, y.result(60) if how else y, np.full(3000, size * (size + 1) / 2, np.float32))


def reached(context: Context, *, yes: bool) -> None:
    """The first long call of which all ranks wait gets it, where they share memory, and every kind is right with it."""
    _reduce(context, "asynchronous on one rank", **({"async_op": True} if context.rank == 0 else {}))
    context.check(_lane(context).common is None, "made for a call that is asynchronous on a rank")
    _reduce(context, "synchronous on all")
    common = _lane(context).common
    context.check((common is not None) == yes, f"memory that all ranks reach: {common}")
    if common is not None:
        free = len(common._free)
        block = common.take(1)
        context.check(block is not None and common._memory.address <= block.address, "a block of it")
        del block
        context.check(len(common._free) == free == 6 and common.take(1 << 30) is None, f"{free} blocks")
        taken, take = [], common.take
        common.take = lambda nbytes: taken.append(nbytes) or take(nbytes)
        _reduce(context, "with it")
        before = len(taken)
        _reduce(context, "asynchronous, with memory of its own", async_op=True)
        context.check(before == len(taken) == 3, f"blocks of {taken} bytes, {before} of them for the synchronous call")
    every_kind(context, "cuda", (1000,))
    every_kind(context, "cuda", (1000,), later=True)


def unpinned(context: Context) -> None:
    """CUDA does not pin it on one rank, which says so where somebody listens and goes through memory of its own."""
    last = context.rank == context.size - 1
    if last:
        arrays.cuda().tell("standin_fail", b"cudaHostRegister", 1, 1)
    log = logging.getLogger("arraycomm")
    before = log.level
    log.setLevel(logging.INFO)
    with logged() as lines:
        _reduce(context, "synchronous on all")
    log.setLevel(before)
    told = [line for line in lines if "private memory" in line]
    context.check(len(told) == last and (_lane(context).common is None) == last, f"{lines}")
    every_kind(context, "cuda", (1000,))

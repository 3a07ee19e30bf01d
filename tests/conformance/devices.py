"""Tasks: arrays that go from device to device, between ranks that reach each other's. Over the stand-in for CUDA's runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np

import arraycomm
from arraycomm.core.arrays.types import DType, reduce_op
from arraycomm.core.base.errors import CollectiveMismatch, DistError
from arraycomm.core.gpu import area, kernels, reach, staged
from tests.logged import logged
from tests.standin import arrays

from .data import DTYPES, OPS, contents, defined
from .expect import expect, given, operation
from .worlds import Context


def near(context: Context, *, tried: bool = False) -> None:
    """Ranks copy from each other's devices from now on, however short arrays are, and however quickly unless that is tried."""
    staged._LONG = 1
    area.SLOT_BYTES = reach.SLOT_BYTES = staged.SLOT_BYTES = 1024
    reach._ENDS, reach.TURN_BYTES = (0, 1024 - 64), 1
    if not tried:
        reach._wins = lambda *_: (True, True)


def reaches(context: Context, *, yes: bool, reduces: bool | None = None, fails: str = "", nth: int = 1, slow: int = 0,
            told: str = "") -> None:
    """Whether they do; reduces: and reduce, if that differs. fails: the nth call of a function on rank 1; slow: a kind of copies;
    told: what rank 1 says of it."""
    cuda = arrays.cuda()
    x = given(context, "cuda", np.full(3000, float(context.rank), np.float32))
    if context.rank == 1 and fails:
        cuda.tell("standin_fail", fails.encode(), nth, 999)
    if slow:
        cuda.tell("standin_slow_kind", slow, 20_000_000)
    with logged() as lines:
        for root in range(context.size):
            context.check((context.group.broadcast(x, root).numpy() == root).all(), f"broadcast from {root}")
        total = context.group.all_reduce(x).numpy()
    context.check((total == sum(range(context.size))).all(), f"all_reduce {total}")
    found: Any = context.group._movers[2]
    context.check((found._reach is not None) == yes, f"reach: {found._reach}, {found._tried}")
    if yes:
        ways = found._reach.copies, found._reach.reduces
        context.check(ways == (True, yes if reduces is None else reduces), f"copies, reduces: {ways}")
    context.check(told in "".join(lines) and bool(lines) == bool(told) if context.rank == 1 else True, f"told {lines}")
    cuda.tell("standin_reset", 1)


@contextmanager
def launches() -> Iterator[list[int]]:
    """Of kernels that reduce, on this rank: one element each."""
    launched: list[int] = []
    kernel = kernels.Kernels.reduce

    def counted(self: kernels.Kernels, to: int, inputs: Any, count: int, *more: Any) -> None:
        launched.append(count)
        kernel(self, to, inputs, count, *more)

    kernels.Kernels.reduce = counted  # type: ignore[method-assign]
    try:
        yield launched
    finally:
        kernels.Kernels.reduce = kernel  # type: ignore[method-assign]


def reductions(context: Context) -> None:
    """By the devices, wherever there is a kernel for it, with the bits of the host's."""
    group, last = context.group, context.size - 1
    with launches() as launched:
        for dtype in DTYPES:
            x = contents(dtype, (context.size * 300,), context.rank, 64, rough=True)
            y = given(context, "cuda", x)
            for op in [reduce_op(operation(name, 0.1)) for name in OPS if defined(name, dtype)]:
                launched.clear()
                pairs = [(group.all_reduce(y, op), group.all_reduce(x, op)),
                         (group.reduce(y, last, op), group.reduce(x, last, op)),
                         (group.reduce_scatter(y, op), group.reduce_scatter(x, op))]
                for got, want in pairs:
                    if want is not None:
                        expect(context, f"{op} of {dtype}", got, want, like=y)
                known = kernels.reduces(DType[dtype.upper()], op, context.size)
                context.check(bool(launched) == known, f"{op} of {dtype}: {len(launched)} launches, {known}")


def unaligned(context: Context) -> None:
    """A result where no kernel can write it, on one rank: the host reduces, for all of them."""
    x = given(context, "cuda", np.full(3000, context.rank + 1.0, np.float32))
    room = given(context, "cuda", np.zeros(12_004, np.uint8))
    moved = 2 if context.rank == 0 else 0
    out = arrays.Array(room.address + moved, (3000,), np.float32, 0, owner=room)
    with launches() as launched:
        context.group.all_reduce(x)
        context.check(len(launched) > 0, "what is aligned goes from device to device")
        launched.clear()
        context.group.all_reduce(x, out=out)
    got, total = room.numpy()[moved : moved + 12_000].view(np.float32), context.size * (context.size + 1) / 2
    context.check((got == total).all() and not launched, f"{got}, {len(launched)} launches")


def turns(context: Context) -> None:
    """Ranks that share a GPU go by the host below so many bytes for each of them."""
    x, short = given(context, "cuda", np.full(3000, 1.0, np.float32)), reach.TURN_BYTES
    context.group.all_reduce(x)
    try:
        for least, goes in ((12_000 // context.size, True), (12_000 // context.size + 1, False)):
            reach.TURN_BYTES = least
            with launches() as launched:
                total = context.group.all_reduce(x).numpy()
            context.check((total == context.size).all() and bool(launched) == goes, f"{least}: {len(launched)} launches, {total}")
    finally:
        reach.TURN_BYTES = short


def differ(context: Context) -> None:
    """Ranks that do not mean the same hear of it, and nothing is written."""
    x = given(context, "cuda", np.full(3000, float(context.rank), np.float32))
    out = given(context, "cuda", np.zeros(3000, np.float32))
    odd = context.rank == context.size - 1
    calls: list[Callable[[arraycomm.Group], object]] = [
        lambda group: group.all_reduce(x, "max" if odd else "sum", out=out),
        lambda group: group.all_reduce(x, arraycomm.premul_sum(2.0 + odd), out=out),
        lambda group: group.reduce(x, 1 if odd else 0, out=out), lambda group: group.gather(x, 1 if odd else 0),
        lambda group: group.broadcast(x, 0, out=out) if odd else group.all_reduce(x, out=out)]
    for index, call in enumerate(calls):
        with cast(arraycomm.Group, context.group.split(0)) as group:
            group.all_reduce(x)  # the way is known
            context.raises(f"call {index}", CollectiveMismatch, "on a GPU", partial(call, group))
    context.check((out.numpy() == 0).all(), "written")


def uneven_asynchrony(context: Context, *, tried: bool) -> None:
    """Calls that are asynchronous on one rank are right, and those that follow, whoever is ahead."""
    group, reached = context.group, not tried
    x = given(context, "cuda", np.full(3000, float(context.rank), np.float32))
    for turn in range(3 * context.size):
        if reached and turn == 0 or turn == 2:
            group.broadcast(x, 0)
        root, later = turn % context.size, turn // 3 == context.rank
        calls = ((group.all_gather, (), np.repeat(np.arange(context.size, dtype=np.float32), 3000)),
                 (group.broadcast, (root,), np.full(3000, root, np.float32)),
                 (group.gather, (root,), np.repeat(np.arange(context.size, dtype=np.float32), 3000)))
        started = [(call(x, *more, async_op=later), want) for call, more, want in calls]
        between = group.all_reduce(np.full(3, float(turn)))
        for got, want in started:
            got = got.result(60) if later else got
            if got is not None:
                context.check(np.array_equal(got.numpy().reshape(-1), want), f"turn {turn}, later={later}: {got.numpy()}")
        context.check((between == context.size * turn).all(), f"turn {turn} on the host: {between}")
    found: Any = group._movers[2]
    context.check(found._tried and found._reach is not None, "the way between devices was tried where all wait")


def neighbour_fails(context: Context, function: str, nth: int, operation: str = "all_gather") -> None:
    """In an operation from device to device: all ranks hear of it, and the next group is right."""
    cuda, group = arrays.cuda(), context.group
    x = given(context, "cupy", np.full(3000, float(context.rank), np.float32))  # which calls nothing meanwhile
    with group.split(0) as half:  # type: ignore[union-attr]
        half.broadcast(x, 0)
        if context.rank == 1:
            cuda.tell("standin_fail", function.encode(), nth, 999)
        caught = None
        try:
            getattr(half, operation)(x)
        except DistError as error:
            caught = error
        context.check(caught is not None, f"{function} {nth}")
        if context.rank == 1:
            context.check(operation in str(caught) and "GPU 0" in str(caught) and "999" in str(caught), str(caught))
    got = group.all_gather(x).numpy()
    context.check((got == np.repeat(np.arange(context.size), 3000)).all(), f"after {function} {nth}")

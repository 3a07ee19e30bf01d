"""Tasks: symmetric arrays, and private ones that peers read in place."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy
import numpy as np
import torch

import arraycomm

from .worlds import Context

# Elements: nothing, one, a page, the smallest direct forms, and several blocks of 256 KiB.
COUNTS = (0, 1, 4099, 20_011, 70_001)
DTYPES = ("float32", "uint8")
Place = Callable[[int, str], Any]


def _values(rank: int, count: int, dtype: str) -> Any:
    turn = ((np.arange(50) * 7 + rank * 3) % 50).astype(dtype)
    return np.tile(turn, -(-count // 50))[:count]


def _movements(context: Context, place: Place, count: int, dtype: str) -> None:
    """Every kind, from and into arrays that `place` gives."""
    group, me, size = context.group, context.rank, context.size
    everybody = np.stack([_values(rank, count * size, dtype) for rank in range(size)])
    x, whole, part = place(count * size, dtype), place(count * size, dtype), place(count, dtype)
    x[...], mine = everybody[me], slice(me * count, (me + 1) * count)
    label = f"{count} {dtype}"
    expected: dict[str, tuple[Callable[[], Any], Any]] = {
        "all_reduce": (lambda: group.all_reduce(x, "max", out=whole), everybody.max(axis=0)),
        "sum": (lambda: group.all_reduce(x, out=whole), everybody.sum(axis=0, dtype=dtype)),
        "reduce_scatter": (lambda: group.reduce_scatter(x, out=part), everybody.sum(axis=0, dtype=dtype)[mine]),
        "broadcast": (lambda: group.broadcast(x, size - 1, out=whole), everybody[-1]),
        "all_to_all": (lambda: group.all_to_all(x, out=whole), everybody[:, mine].reshape(-1)),
        "scatter": (lambda: group.scatter(x, out=part), everybody[0][mine]),
        "all_gather": (lambda: group.all_gather(x[:count], out=whole), everybody[:, :count].reshape(-1)),
        "gather": (lambda: group.gather(x[:count], size - 1, out=whole), everybody[:, :count].reshape(-1)),
    }
    for kind, (call, reference) in expected.items():
        result = call()
        context.check(result is None or np.array_equal(result, reference), f"{kind} of {label}")
        context.check(np.array_equal(x, everybody[me]), f"{kind} of {label} changed its input")
    group.all_gather(whole[mine], out=whole)
    group.all_reduce(x, out=x)
    context.check(np.array_equal(x, everybody.sum(axis=0, dtype=dtype)), f"all_reduce of {label} in place")
    context.same(f"all_reduce of {label}", x)


def kinds(context: Context) -> None:
    for dtype in DTYPES:
        for count in COUNTS:
            _movements(context, context.group.empty, count, dtype)


def private(context: Context) -> None:
    """The same forms over arrays of the callers' own; the choice between copying once and twice goes through all cases."""
    for turn in range(2):
        for count in COUNTS[2:]:
            _movements(context, np.empty, count + turn % 2, "int64")


def some_private(context: Context) -> None:
    """Ranks of even number use a symmetric array, the others one of their own."""
    group, size = context.group, context.size
    for count in COUNTS:
        symmetric = group.empty(count * size)  # a collective call: also where the array is not used
        x = np.empty(count * size, np.float32) if context.rank % 2 else symmetric
        x[...] = _values(context.rank, count * size, "float32")
        everybody = np.stack([_values(rank, count * size, "float32") for rank in range(size)])
        context.check(np.array_equal(group.all_reduce(x), everybody.sum(axis=0)), f"all_reduce of {count}")
        context.check(np.array_equal(group.all_gather(x), everybody.reshape(-1)), f"all_gather of {count}")
        group.all_reduce(x, "min", out=x)
        context.check(np.array_equal(x, everybody.min(axis=0)), f"all_reduce of {count} in place")
    long_exchanges(context)


# float32 a rank, up to where slots alone are used and beyond (direct.h), and how many calls: so many that both ways of the choice
# are taken, in turns. Ranks that chose differently would wait for each other for good.
EXCHANGES_OF_TWO = ((32_768, 4), (33_000, 130), (65_540, 70))
EXCHANGES = ((524_280, 4), (800_000, 12))


def long_exchanges(context: Context) -> None:
    """all_to_all and all_gather of private arrays."""
    size = context.size
    for whole, turns in (*(EXCHANGES_OF_TWO if size == 2 else ()), *EXCHANGES):
        count = whole // size
        mine = slice(context.rank * count, (context.rank + 1) * count)
        for turn in range(turns):
            given = [_values(rank + turn, count * size, "float32") for rank in range(size)]
            x = given[context.rank].copy()
            got, gathered = context.group.all_to_all(x), context.group.all_gather(x[:count])
            label = f"{whole}, turn {turn}"
            context.check(np.array_equal(got, np.concatenate([array[mine] for array in given])), f"all_to_all of {label}")
            context.check(np.array_equal(gathered, np.concatenate([array[:count] for array in given])), f"all_gather of {label}")
            context.check(np.array_equal(x, given[context.rank]), f"an input was changed, {label}")


# Bytes: below what peers map, above it, and where both sides copy (p2p/share.c), by ordinary stores and past the caches.
MESSAGES = (30_000, 100_000, 3_000_001, (5 << 20) + 20)


def messages(context: Context) -> None:
    """Round a ring, between symmetric arrays and private ones in each of the four ways."""
    group, me, size = context.group, context.rank, context.size
    source, dest = (me - 1) % size, (me + 1) % size
    for count in MESSAGES:
        symmetric = [group.empty(count + 9, "uint8") for _ in range(2)]
        private = [np.empty(count + 9, "uint8") for _ in range(2)]
        for turn in range(8):
            x, y = (symmetric if turn & 1 else private)[0], (symmetric if turn & 2 else private)[1]
            x[turn : count + turn] = _values(me + turn, count, "uint8")
            y[...] = 255
            sent = group.isend(x[turn : count + turn], dest)
            group.recv(source=source, out=y[1 : count + 1])
            sent.wait()
            label = f"{count} bytes, turn {turn}"
            context.check(np.array_equal(y[1 : count + 1], _values(source + turn, count, "uint8")), label)
            context.check(y[0] == 255 and (y[count + 1 :] == 255).all(), f"{label}: beside the array")


def libraries(context: Context) -> None:
    """Arrays of every library and dtype; what each library does with them is seen by the peers."""
    group, size = context.group, context.size
    tensor = group.empty((3, 30_000), torch.bfloat16, like=torch.zeros(1))
    context.check(isinstance(tensor, torch.Tensor) and tensor.dtype is torch.bfloat16, repr(type(tensor)))
    tensor.fill_(2)
    group.all_reduce(tensor, out=tensor)
    context.check(bool((tensor == 2 * size).all()), "torch bfloat16")
    array = group.empty(40_000, "int32", like=jax.numpy.zeros(1, "int32"))
    context.check(array.shape == (40_000,) and str(array.dtype) == "int32", repr(array))
    context.check(group.all_gather(array).shape == (40_000 * size,), "a JAX array goes in")
    for dtype in (np.float64, np.dtype("complex64"), arraycomm.DType.BOOL, "float8_e4m3fn", np.dtype("uint16")):
        x = group.empty((2, 5), dtype)
        context.check(x.shape == (2, 5) and x.flags.writeable and x.flags.c_contiguous, f"{dtype}: {x.shape}")
    zero = group.empty((), "float64")
    zero[...] = 1
    context.check(group.all_reduce(zero) == size, "0-d")
    uneven = group.empty((context.rank + 1, 1000))
    uneven[...] = context.rank
    rows = group.all_gather(uneven, uneven=True)
    context.check(rows.shape == (size * (size + 1) // 2, 1000) and (rows[-1] == size - 1).all(), "shapes that differ")


def lifetime(context: Context) -> None:
    """Freed with the array, and not before; memory is used again; an array outlives its group."""
    twin = context.group.split(0)
    assert twin is not None
    for turn in range(8):
        x = twin.empty(1_000_000)
        x[...] = turn
        part = x[10:20]
        del x
        gc.collect()
        context.check((part == turn).all(), f"turn {turn}: a view keeps the memory")
    last = twin.empty(100_000)
    last[...] = 7
    twin.close()
    context.check((last == 7).all(), "after the group")
    last += 1
    context.check((context.group.all_reduce(last, "max") == 8).all(), "an ordinary array for other groups")
    context.raises("memory of a closed group", arraycomm.Aborted, "is closed", lambda: twin.empty(3))


def between_others(context: Context) -> None:
    """empty() takes its place in the order of collectives, also beside those that are still under way."""
    group = context.group
    before = [group.all_reduce(np.full(50_000, i), async_op=True) for i in range(5)]
    x = group.empty(50_000, "int64")
    x[...] = context.rank
    after = [group.all_reduce(x, "max", async_op=True) for _ in range(3)]
    context.check(all((w.result() == i * context.size).all() for i, w in enumerate(before)), "before")
    context.check(all((w.result() == context.size - 1).all() for w in after), "after")


def refusals(context: Context) -> None:
    wrong: Any = context.group
    bad: Any
    for bad, error, text in (((-1,), ValueError, "no negative lengths"), ((2.5,), TypeError, "must be an integer"),
                             ("abc", TypeError, "must be an integer")):
        context.raises(f"empty({bad!r})", error, text, partial(context.group.empty, bad))
    context.raises("a dtype", TypeError, "float31", lambda: context.group.empty(3, "float31"))
    context.raises("a list", TypeError, "expected an array", lambda: wrong.empty(3, like=[1, 2]))
    context.check(context.group.all_reduce(np.ones(3)).tolist() == [context.size] * 3, "nothing was sent")

"""Tasks: lengths about every power of two, where ways of moving and their pieces have limits, from places anywhere in a line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import arraycomm

from .worlds import Context

LINE = 64
Array = np.ndarray[Any, Any]
_POWERS = range(9, 23)  # of bytes
_BESIDE = (-65, -64, -48, -1, 0, 1, 64)


def lie(memory: Array, at: int, count: int, dtype: str = "uint8") -> Array:
    """So many elements in that memory, so many bytes behind the beginning of a line; there has to be a line more."""
    begin = -memory.ctypes.data % LINE + at
    return memory[begin : begin + count * np.dtype(dtype).itemsize].view(dtype)


def pattern(mark: int, count: int, dtype: str = "uint8") -> Array:
    """Like no other mark's, and like itself nowhere near."""
    return np.resize(((np.arange(251) + mark) % 251).astype(dtype), count)


class Case(NamedTuple):
    call: Callable[..., Any]
    out: Array | None  # None: this rank gets nothing
    want: Array


def cases(group: arraycomm.Group, given: Array, out: Array, block: int, mark: int, root: int = 0) -> dict[str, Case]:
    """Every collective of blocks of so many elements, in memory for a block of each rank."""
    size, me = group.size, group.rank
    every = [pattern(mark + rank, size * block, given.dtype.name) for rank in range(size)]
    whole, one, result, joined = given[: size * block], given[:block], out[:block], out[: size * block]
    own = slice(me * block, (me + 1) * block)
    whole[:] = every[me]
    out.view(np.uint8).fill(255)
    total, beginnings = functools.reduce(np.add, every), np.concatenate([each[:block] for each in every])
    part, roots = functools.partial, me == root
    return {
        "all_reduce": Case(part(group.all_reduce, one, out=result), result, total[:block]),
        "in place": Case(part(group.all_reduce, one, out=one), one, total[:block]),
        "reduce_scatter": Case(part(group.reduce_scatter, whole, out=result), result, total[own]),
        "all_gather": Case(part(group.all_gather, one, out=joined), joined, beginnings),
        "all_to_all": Case(part(group.all_to_all, whole, out=joined), joined, np.concatenate([each[own] for each in every])),
        "broadcast": Case(part(group.broadcast, one, root, out=result), result, every[root][:block]),
        "scatter": Case(part(group.scatter, whole if roots else None, root, out=result), result, every[root][own]),
        "reduce": Case(part(group.reduce, one, root, out=result if roots else None), result if roots else None, total[:block]),
        "gather": Case(part(group.gather, one, root, out=joined if roots else None), joined if roots else None, beginnings),
    }


def _lengths() -> Iterator[tuple[int, int]]:
    """Bytes, and how far in its line the array begins: malloc's arrays do at 16."""
    for power in _POWERS:
        for beside in _BESIDE:
            yield (1 << power) + beside, 16
        yield 1 << power, 0
        yield 1 << power, 63


def messages(context: Context) -> None:
    """Around a ring, with the receive begun before the send, after it, and out of order."""
    group, me = context.group, context.rank
    right, left = (me + 1) % context.size, (me - 1) % context.size
    sent, got = (np.empty((1 << _POWERS.stop) + 3 * LINE, np.uint8) for _ in range(2))
    for count, skew in _lengths():
        x, y, want = lie(sent, skew, count), lie(got, 0, count), pattern(left, count)
        x[:] = pattern(me, count)
        for way in ("receive first", "send first", "out of order"):
            y.fill(255)
            if way == "receive first":
                work: arraycomm.Work[Any] = group.irecv(left, out=y)
                group.send(x, right)
            else:
                work = group.isend(x, right, 5)
            if way == "out of order":
                after = group.isend(x[::-1].copy(), right, 6)
                group.recv(left, 6, out=y)
                context.check(np.array_equal(y, want[::-1]), f"{count} bytes at {skew} of a line: overtook another")
                after.wait(60)
            if way != "receive first":
                group.recv(left, 5, out=y)
            work.wait(60)
            context.check(np.array_equal(y, want), f"{count} bytes at {skew} of a line: {way}")


def collectives(context: Context) -> None:
    """Blocks of those lengths, and, of what all ranks' arrays are joined to, blocks that are theirs together."""
    size = context.size
    given, out = (np.empty(size * ((1 << _POWERS.stop) + LINE) + 2 * LINE, np.uint8) for _ in range(2))
    for count, skew in _lengths():
        for block in {count, count // size}:
            made = cases(context.group, lie(given, skew, size * block), lie(out, 0, size * block), block, 0)
            for name in [name for name in made if name != "in place"] + ["in place"]:
                made[name].call()
                found = made[name].out
                context.check(found is None or np.array_equal(found, made[name].want),
                              f"{name}, blocks of {block} bytes at {skew} of a line")
                if found is not None:
                    found.fill(255)

"""Tasks: more elements and bytes than 32 bits can count."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .worlds import Context

_STEP = 1 << 26  # elements compared at a time
_FLOATS = (1 << 30) + 6  # more than 2^32 bytes, and 2^30 elements


@functools.cache
def _memory() -> np.ndarray[Any, Any]:
    """The same for all tasks of a rank: to be given 4 GiB takes longer than all that they do there."""
    return np.empty(4 * _FLOATS, np.uint8)


def over(context: Context, transport: str, operations: str) -> None:
    """One of the tasks below, by a group of the same ranks over this transport."""
    with context.variant({"ARRAYCOMM_TRANSPORT": transport}) as variant:
        engine: Any = variant.group._communicator
        variant.check(engine.about.startswith("shared memory,") == (transport == "shm"), f"{engine.about}, not {transport}")
        {"moved": moved, "more_than_2_gi_elements": more_than_2_gi_elements, "parts": parts}[operations](variant)


def _marked(count: int, value: int, mark: int) -> np.ndarray[Any, Any]:
    """All `value`, but for `mark` at both ends and on both sides of every multiple of 2^31."""
    array = _memory()[:count]
    array[:] = value
    array[_marks(count)] = mark
    return array


def _marks(count: int) -> list[int]:
    borders = [b for k in range(1, 3) for b in (k * 2**31 - 1, k * 2**31) if b < count]
    return [0, *borders, count - 1]


def _holds(array: np.ndarray[Any, Any], value: int, mark: int) -> bool:
    marks = _marks(array.size)
    fine = all(array[m] == mark for m in marks)
    array[marks] = value
    return fine and all((array[i : i + _STEP] == value).all() for i in range(0, array.size, _STEP))


def moved(context: Context, count: int = 2**32 + 9) -> None:
    """Bytes, in place, because the memory of the machine is finite."""
    group, me = context.group, context.rank
    x = _marked(count, 5, 77) if me == 0 else _marked(count, 0, 0)
    group.broadcast(x, 0, out=x)
    context.check(_holds(x, 5, 77), "broadcast")
    x[:] = 9 if me == 0 else 0
    if me == 0:
        group.send(x, 1)
    elif me == 1:
        group.recv(0, out=x)
        context.check(_holds(x, 9, 9), "message")


def more_than_3_gib(context: Context) -> None:
    """Of four bytes each: bytes that an int cannot count, elements that it can."""
    x = _memory().view(np.int32)[: (3 << 28) + 5]
    x[:] = 1 + context.rank
    context.group.all_reduce(x, out=x)
    total = context.size * (context.size + 1) // 2
    context.check(all((x[i : i + _STEP] == total).all() for i in range(0, x.size, _STEP)), "all_reduce of int32")


def more_than_2_gi_elements(context: Context) -> None:
    x = _marked(2**31 + 9, 1 + context.rank, 10 + context.rank)
    context.group.all_reduce(x, out=x)
    total = context.size * (context.size - 1) // 2
    context.check(_holds(x, context.size + total, 10 * context.size + total), "all_reduce")


def _pattern(x: np.ndarray[Any, Any], rank: int) -> None:
    x[:] = rank + 1
    x[[0, x.size // 2, x.size - 1]] = rank + 10


def _is_pattern(x: np.ndarray[Any, Any], rank: int, factor: int = 1) -> bool:
    marks = [0, x.size // 2, x.size - 1]
    plain = sum(int(np.count_nonzero(x[i : i + _STEP] == (rank + 1) * factor)) for i in range(0, x.size, _STEP))
    return bool((x[marks] == (rank + 10) * factor).all()) and plain == x.size - len(marks)


def parts(context: Context) -> None:
    """What lies at large offsets: the ranks' parts of arrays of more than 2^32 bytes and 2^30 elements, in place."""
    group, whole = context.group, _memory().view(np.float32)
    size = whole.size // group.size
    own = [whole[rank * size : (rank + 1) * size] for rank in range(group.size)]
    whole[:] = 0
    _pattern(own[group.rank], group.rank)
    group.all_gather(own[group.rank], out=whole)
    for rank, part in enumerate(own):
        context.check(_is_pattern(part, rank), f"all_gather: part of rank {rank}")
    group.reduce_scatter(whole, out=own[group.rank])
    context.check(_is_pattern(own[group.rank], group.rank, group.size), "reduce_scatter")

"""Tasks: more elements and bytes than 32 bits can count."""

from __future__ import annotations

from typing import Any

import numpy as np

from .worlds import Context

_STEP = 1 << 26  # elements compared at a time


def _marked(count: int, value: int, mark: int) -> np.ndarray[Any, Any]:
    """All `value`, but for `mark` at both ends and on both sides of every multiple of 2^31."""
    array = np.full(count, value, np.uint8)
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


def moved(context: Context, count: int) -> None:
    """Bytes, in place, because the memory of the machine is finite."""
    group, me = context.group, context.rank
    x = _marked(count, 5, 77) if me == 0 else np.zeros(count, np.uint8)
    group.broadcast(x, 0, out=x)
    context.check(_holds(x, 5, 77), "broadcast")
    x[:] = 9 if me == 0 else 0
    if me == 0:
        group.send(x, 1)
    elif me == 1:
        group.recv(x, 0, out=x)
        context.check(_holds(x, 9, 9), "message")


def more_than_3_gib(context: Context) -> None:
    """Of four bytes each: bytes that an int cannot count, elements that it can."""
    x = np.full((3 << 28) + 5, 1 + context.rank, np.int32)
    context.group.all_reduce(x, out=x)
    total = context.size * (context.size + 1) // 2
    context.check(all((x[i : i + _STEP] == total).all() for i in range(0, x.size, _STEP)), "all_reduce of int32")


def more_than_2_gi_elements(context: Context) -> None:
    x = _marked(2**31 + 9, 1 + context.rank, 10 + context.rank)
    context.group.all_reduce(x, out=x)
    total = context.size * (context.size - 1) // 2
    context.check(_holds(x, context.size + total, 10 * context.size + total), "all_reduce")

"""Shape arithmetic of the collectives. Pure functions; a ValueError names the expected shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from arraycomm._engine import layout as _layout

from ..arrays.arrays import plain
from ..arrays.dlpack import wrap
from ..arrays.opaque import Opaque
from . import arguments
from .arguments import Destination

FORMS = ("concat", "stack", "list")


def layout(shape: tuple[int, ...], extra: Sequence[int] | None = None) -> int:
    """A 32-bit hash of shapes (or counts), never 0, for the call signature check.

    Python's hash of a tuple of integers is equal in all processes of one version.
    """
    return _layout(shape) if extra is None else hash((shape[1:], tuple(extra))) & 0xFFFFFFFF | 1


def row(shape: tuple[int, ...]) -> int:
    """Elements of one row of the first dimension."""
    return math.prod(shape[1:])


def gathered(shape: tuple[int, ...], size: int, form: str | None, rows: Sequence[int] | None) -> tuple[int, ...]:
    """Shape of the array that holds every rank's array of `shape` (with these first dimensions, where uneven)."""
    if form is None:
        form = "concat"
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if rows is not None:
        if form == "stack":
            raise ValueError("arrays with different first dimensions cannot be stacked; use form='concat' or 'list'")
        return (sum(rows), *shape[1:])
    return (size * shape[0], *shape[1:]) if form == "concat" and shape else (size, *shape)


def listed(to: Destination, shape: tuple[int, ...], size: int, rows: Sequence[int] | None) -> Destination:
    """The same destination, whose array() gives one array per rank: views where the library has them."""
    make: Callable[[], Any] = to.array
    ends = range(1, size + 1) if rows is None else [sum(rows[: i + 1]) for i in range(size)]
    counts = [1] * size if rows is None else rows

    def split() -> list[Any]:
        whole = make()
        if isinstance(whole, memoryview) or not hasattr(whole, "__dlpack__") or not hasattr(whole, "__getitem__"):
            return [_rows(to.buffer, whole, end - n, shape if rows is None else (n, *shape[1:]))
                    for n, end in zip(counts, ends, strict=True)]
        if rows is None:
            return [whole[i, ...] for i in range(size)]
        return [whole[end - n : end, ...] for n, end in zip(rows, ends, strict=True)]

    return Destination(to.buffer, split)


def _rows(buffer: Any, whole: Any, start: int, shape: tuple[int, ...]) -> Any:
    """An array of that shape, from row `start` on, of the Buffer of what has no slices of several dimensions."""
    if isinstance(buffer, Opaque):
        return buffer.restore(_rows(buffer.buffer, buffer.carrier, start, (*shape, buffer.units)))
    part = buffer.part(start * math.prod(buffer.shape[1:]), shape)
    return wrap(part, whole) if buffer.owner is None else plain(part)


def divided(shape: tuple[int, ...], size: int, operation: str, uneven: str) -> tuple[int, ...]:
    """Shape of one of `size` equal parts along the first dimension. uneven: what to do for parts that are not."""
    if not shape:
        raise ValueError(f"{operation} cuts along the first dimension, and a 0-d array has none")
    if shape[0] % size:
        raise ValueError(f"{operation} needs a first dimension that is a multiple of the group's size {size}, got "
                         f"shape {shape}; {uneven}")
    return (shape[0] // size, *shape[1:])


def check_counts(shape: tuple[int, ...], size: int, counts: Sequence[int], name: str) -> list[int]:
    """Counts as ints: one non-negative integer per rank, that together cover the first dimension."""
    if not shape:
        raise ValueError(f"{name} cut along the first dimension, and a 0-d array has none")
    found = arguments.counts(name, counts, size)
    if sum(found) != shape[0]:
        raise ValueError(f"{name} add up to {sum(found)}, but the first dimension is {shape[0]}")
    return found


def check_rows(shape: tuple[int, ...], rank: int, size: int, counts: Sequence[int]) -> list[int]:
    """Counts as ints: every rank's first dimension, this rank's among them."""
    if not shape:
        raise ValueError("counts need a first dimension, and a 0-d array has none")
    found = arguments.counts("counts", counts, size)
    if found[rank] != shape[0]:
        raise ValueError(f"counts says that rank {rank} gives {found[rank]} rows, but its array has shape {shape}")
    return found


def part(shape: tuple[int, ...], size: int, counts: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Shape of the result on `rank` of a reduce_scatter with checked counts."""
    if counts is None:
        return divided(shape, size, "reduce_scatter", "give counts for uneven parts")
    return (counts[rank], *shape[1:])

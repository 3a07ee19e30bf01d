"""Tasks: the operations that only move elements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .data import back, contents, difference, framework_of, supports
from .expect import expect, given, untouched
from .worlds import Context


def matrix(context: Context, framework: str, dtypes: Sequence[str], shape: tuple[int, ...] = (3, 2)) -> None:
    """Every operation on every dtype."""
    for dtype in dtypes:
        if framework == "mixed" or supports(framework, dtype):
            broadcast(context, framework, dtype, shape)
            all_gather(context, framework, dtype, shape)
            gather(context, framework, dtype, shape)
            scatter(context, framework, dtype, shape)
            all_to_all(context, framework, dtype, shape)


def sizes(context: Context, counts: Sequence[int], dtypes: Sequence[str] = ("int8", "float32", "complex128")) -> None:
    """Arrays of these many elements a rank."""
    for count in counts:
        matrix(context, "numpy", dtypes, (count,))


def roots(context: Context) -> None:
    """Every root."""
    for root in range(context.size):
        for count in (1, 1000):
            broadcast(context, "numpy", "int32", (count,), root)
            gather(context, "numpy", "int32", (count,), root)
            scatter(context, "numpy", "int32", (count,), root)


def _inputs(context: Context, dtype: str, shape: tuple[int, ...], seed: int) -> list[np.ndarray[Any, Any]]:
    return [contents(dtype, shape, rank, seed, True) for rank in range(context.size)]


def _root(context: Context, dtype: str, root: int | None) -> int:
    return len(dtype) % context.size if root is None else root


def broadcast(context: Context, framework: str, dtype: str, shape: tuple[int, ...], root: int | None = None) -> None:
    root = _root(context, dtype, root)
    label = f"broadcast {dtype} {framework} {list(shape)} root {root}"
    inputs = _inputs(context, dtype, shape, 11)
    x = given(context, framework, inputs[context.rank])
    y = context.group.broadcast(x, root)
    expect(context, label, y, inputs[root], like=x, shared=True)
    untouched(context, label, x, inputs[context.rank])


def all_gather(context: Context, framework: str, dtype: str, shape: tuple[int, ...]) -> None:
    inputs = _inputs(context, dtype, shape, 12)
    x = given(context, framework, inputs[context.rank])
    forms: dict[Literal["concat", "stack"], np.ndarray[Any, Any]] = {"concat": np.concatenate(inputs), "stack": np.stack(inputs)}
    for form, want in forms.items():
        label = f"all_gather {dtype} {framework} {list(shape)} {form}"
        y = context.group.all_gather(x, form=form)
        expect(context, label, y, want, like=x, shared=True)
    untouched(context, f"all_gather {dtype} {framework}", x, inputs[context.rank])


def gather(context: Context, framework: str, dtype: str, shape: tuple[int, ...], root: int | None = None) -> None:
    root = _root(context, dtype, root)
    label = f"gather {dtype} {framework} {list(shape)} root {root}"
    inputs = _inputs(context, dtype, shape, 13)
    x = given(context, framework, inputs[context.rank])
    y = context.group.gather(x, root, form="stack")
    if context.rank == root:
        expect(context, label, y, np.stack(inputs), like=x)
    else:
        context.check(y is None, f"{label}: a rank that is not the root got {y!r}")


def scatter(context: Context, framework: str, dtype: str, shape: tuple[int, ...], root: int | None = None) -> None:
    root = _root(context, dtype, root)
    label = f"scatter {dtype} {framework} {list(shape)} root {root}"
    whole = contents(dtype, (context.size * shape[0], *shape[1:]), root, 14, True)
    mine = whole[context.rank * shape[0] : (context.rank + 1) * shape[0]]
    if context.rank == root:
        x = given(context, framework, whole)
        y = context.group.scatter(x, root)
    else:
        x = given(context, framework, np.zeros_like(mine))
        y = context.group.scatter(None, root, like=x)
    expect(context, label, y, mine, like=x)


def all_to_all(context: Context, framework: str, dtype: str, shape: tuple[int, ...]) -> None:
    label = f"all_to_all {dtype} {framework} {list(shape)}"
    rows = shape[0]
    inputs = _inputs(context, dtype, (context.size * rows, *shape[1:]), 15)
    x = given(context, framework, inputs[context.rank])
    y = context.group.all_to_all(x)
    want = np.concatenate([array[context.rank * rows : (context.rank + 1) * rows] for array in inputs])
    expect(context, label, y, want, like=x)
    untouched(context, label, x, inputs[context.rank])


def uneven(context: Context, framework: str, rows: Sequence[Sequence[int]], dtype: str = "float32") -> None:
    """What takes numbers of rows that differ, with them; each entry of `rows` is repeated over the ranks."""
    for pattern in rows:
        counts = [pattern[rank % len(pattern)] for rank in range(context.size)]
        uneven_gather(context, framework, dtype, counts)
        uneven_with_root(context, framework, dtype, counts, len(pattern) % context.size)
        table = [[pattern[(s + 2 * d) % len(pattern)] for d in range(context.size)] for s in range(context.size)]
        uneven_all_to_all(context, framework, dtype, table, tell=sum(pattern) % 2 == 0)


def uneven_gather(context: Context, framework: str, dtype: str, counts: list[int]) -> None:
    label = f"all_gather uneven {dtype} {framework} {counts}"
    inputs = [contents(dtype, (n, 3), rank, 16, True) for rank, n in enumerate(counts)]
    x = given(context, framework, inputs[context.rank])
    y = context.group.all_gather(x, uneven=True)
    expect(context, label, y, np.concatenate(inputs), like=x, shared=True)
    as_array: Any = np.array(counts)
    known = context.group.all_gather(x, counts=as_array, async_op=True).result()
    expect(context, f"{label} counts", known, np.concatenate(inputs), like=x, shared=True)
    parts = context.group.all_gather(x, uneven=True, form="list")
    context.check(len(parts) == context.size, f"{label}: a list of {len(parts)}")
    for rank, (part, want) in enumerate(zip(parts, inputs, strict=False)):
        expect(context, f"{label} list[{rank}]", part, want, like=x)


def uneven_with_root(context: Context, framework: str, dtype: str, counts: list[int], root: int) -> None:
    label, group, mine = f"uneven {dtype} {framework} {counts} root {root}", context.group, context.rank == root
    inputs = [contents(dtype, (n, 3), rank, 19, True) for rank, n in enumerate(counts)]
    whole, here = np.concatenate(inputs), inputs[context.rank]
    x = given(context, framework, here)
    ways: dict[str, Any] = {"found out": {"uneven": True}, "counts": {"counts": counts},
                            "async": {"counts": counts, "async_op": True}}
    for way, how in ways.items():
        y = group.gather(x, root, **how)
        y = y.result(60) if way == "async" else y
        if mine:
            expect(context, f"gather {label}, {way}", y, whole, like=x)
        else:
            context.check(y is None, f"gather {label}, {way}: {y!r} on another rank")
        y = group.scatter(given(context, framework, whole) if mine else None, root, like=None if mine else x, **how)
        expect(context, f"scatter {label}, {way}", y.result(60) if way == "async" else y, here, like=x)
    out = np.empty_like(here)
    group.scatter(whole if mine else None, root, out=out, uneven=True)
    expect(context, f"scatter {label} into out", out, here)
    parts = group.gather(x, root, counts=counts, form="list")
    for rank, part in enumerate(parts or ()):
        expect(context, f"gather {label} list[{rank}]", part, inputs[rank], like=x)
    if context.size > 1:
        few = whole[: sum(counts) - counts[root] - 1] if mine else None
        if sum(counts) > counts[root]:
            context.raises(f"scatter {label} of too few", ValueError, "1 rows more than its x has",
                           lambda: group.scatter(few, root, like=None if mine else x, uneven=True))
        context.raises(f"gather {label} of wrong counts", ValueError, "counts says that rank",
                       lambda: group.gather(x, root, counts=[n + 1 for n in counts]))


def uneven_all_to_all(context: Context, framework: str, dtype: str, table: list[list[int]], tell: bool) -> None:
    """table[s][d]: rows from rank s to rank d."""
    me, label = context.rank, f"all_to_all uneven {dtype} {framework} {table}"
    inputs = [contents(dtype, (sum(row), 2), rank, 17, True) for rank, row in enumerate(table)]
    x = given(context, framework, inputs[me])
    receives = [np.int64(row[me]) for row in table]
    sends: Any = np.array(table[me])
    y = context.group.all_to_all(x, send_counts=sends, recv_counts=receives if tell else None)
    parts = [array[sum(row[:me]) : sum(row[: me + 1])] for array, row in zip(inputs, table, strict=True)]
    expect(context, label, y, np.concatenate(parts), like=x)


def long_uneven(context: Context) -> None:
    """What the ranks compare first takes as long for long blocks as for short ones."""
    count, me = 4 << 20, context.rank
    x = np.repeat(np.arange(context.size, dtype=np.uint8) + 10 * me, count)
    y = context.group.all_to_all(x, send_counts=[count] * context.size, timeout=5.0)
    want = np.repeat(10 * np.arange(context.size, dtype=np.uint8) + me, count)
    context.check(np.array_equal(y, want), "long uneven all_to_all")


def long_even(context: Context) -> None:
    """Blocks that do not begin where pages do, and end within what goes past the caches at a time."""
    count, me = (3 << 20) + 5, context.rank
    inputs = [np.resize(np.arange(251, dtype=np.uint8) + 3 * rank, context.size * count + 1)[1:] for rank in range(context.size)]
    want = np.concatenate([array[me * count : (me + 1) * count] for array in inputs])
    out = np.zeros(context.size * count + 3, np.uint8)
    for _ in range(2):
        context.group.all_to_all(inputs[me], out=out[2:-1])
        context.check(np.array_equal(out[2:-1], want) and not out[[0, 1, -1]].any(), "long even all_to_all")
        out[:] = 0


def lists(context: Context, framework: str) -> None:
    """The list form, and that its arrays are of the caller's library."""
    inputs = _inputs(context, "int32", (2, 3), 18)
    x = given(context, framework, inputs[context.rank])
    parts = context.group.all_gather(x, form="list")
    context.check(isinstance(parts, list) and len(parts) == context.size, f"all_gather list: {type(parts)}")
    for part, want in zip(parts, inputs, strict=False):
        expect(context, f"all_gather list {framework}", part, want, like=x)
    at_root = context.group.gather(x, 0, form="list")
    if at_root is not None:
        wrong = [difference(back(part), want) for part, want in zip(at_root, inputs, strict=True)]
        context.check(not any(wrong), f"gather list: {wrong}")
        context.check(all(framework_of(part) == framework_of(x) for part in parts), "gather list: other library")


def barriers(context: Context, folder: str | None = None) -> None:
    """Nobody is through before everybody has come: every rank leaves a file first and counts them afterwards."""
    for turn in range(10):
        if folder is not None:
            Path(folder, f"{turn}-{context.rank}").touch()
        context.check(context.group.barrier() is None, "barrier gives None")
        if folder is not None:
            came = len(list(Path(folder).glob(f"{turn}-*")))
            context.check(came == context.size, f"barrier {turn}: {came} of {context.size} had come")

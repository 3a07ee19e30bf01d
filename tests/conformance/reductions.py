"""Tasks: all_reduce, reduce, reduce_scatter, scan and exscan."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from .data import NARROW, OPS, back, contents, defined, make, reduced, supports
from .expect import expect, given, operation, slack, untouched
from .worlds import Context

_WHOLE, _BROKEN = -3.0, 0.5  # factors of premul_sum: integers wrap with the first and truncate with the second


def matrix(context: Context, framework: str, dtypes: Sequence[str], shape: tuple[int, ...] = (3, 5), *,
           rough: bool = False, exact: bool = True) -> None:
    """Every reduction of every dtype. `exact`: the bits of rank order, also for rough numbers."""
    for dtype in dtypes:
        if framework != "mixed" and not supports(framework, dtype):
            continue
        for op in OPS:
            if defined(op, dtype):
                factor = _BROKEN if dtype in NARROW or dtype == "int32" else _WHOLE
                close = slack(context, dtype, op, rough=rough, exact=exact)
                all_reduce(context, framework, dtype, op, factor, shape, rough, close)
                reduce(context, framework, dtype, op, factor, shape, rough, close)
                reduce_scatter(context, framework, dtype, op, factor, shape, rough, close)
                if framework in ("numpy", "mixed"):
                    scan(context, framework, dtype, op, factor, shape, rough, 0.0)
                    exscan(context, framework, dtype, op, factor, shape, rough, 0.0)


def all_reduce(context: Context, framework: str, dtype: str, op: str, factor: float, shape: tuple[int, ...],
                rough: bool, close: float) -> None:
    label = f"all_reduce {dtype} {op} {framework} {list(shape)}"
    inputs = [contents(dtype, shape, rank, 1, rough) for rank in range(context.size)]
    x = given(context, framework, inputs[context.rank])
    y = context.group.all_reduce(x, operation(op, factor))
    expect(context, label, y, reduced(op, inputs, factor), like=x, close=close, shared=True)
    untouched(context, label, x, inputs[context.rank])


def reduce(context: Context, framework: str, dtype: str, op: str, factor: float, shape: tuple[int, ...], rough: bool,
            close: float) -> None:
    root = (len(dtype) + len(op)) % context.size
    label = f"reduce {dtype} {op} {framework} {list(shape)} root {root}"
    inputs = [contents(dtype, shape, rank, 2, rough) for rank in range(context.size)]
    x = given(context, framework, inputs[context.rank])
    y = context.group.reduce(x, root, operation(op, factor))
    if context.rank == root:
        expect(context, label, y, reduced(op, inputs, factor), like=x, close=close)
    else:
        context.check(y is None, f"{label}: a rank that is not the root got {y!r}")
    untouched(context, label, x, inputs[context.rank])


def reduce_scatter(context: Context, framework: str, dtype: str, op: str, factor: float, shape: tuple[int, ...],
                    rough: bool, close: float) -> None:
    whole = (context.size * shape[0], *shape[1:])
    label = f"reduce_scatter {dtype} {op} {framework} {list(whole)}"
    inputs = [contents(dtype, whole, rank, 3, rough) for rank in range(context.size)]
    x = given(context, framework, inputs[context.rank])
    y = context.group.reduce_scatter(x, operation(op, factor))
    want = reduced(op, inputs, factor)[context.rank * shape[0] : (context.rank + 1) * shape[0]]
    expect(context, label, y, want, like=x, close=close)
    untouched(context, label, x, inputs[context.rank])


def _scanned(kind: str, context: Context, framework: str, dtype: str, op: str, factor: float, shape: tuple[int, ...], rough: bool,
             close: float) -> None:
    """In rank order by every algorithm."""
    ranks = context.rank + (kind == "scan")
    label = f"{kind} {dtype} {op} {framework} {list(shape)}"
    inputs = [contents(dtype, shape, rank, 4, rough) for rank in range(context.size)]
    x = given(context, framework, inputs[context.rank])
    y = getattr(context.group, kind)(x, operation(op, factor))
    if ranks:
        want = reduced(op, inputs[:ranks], factor)
    elif op in ("avg", "premul_sum"):  # without an identity
        want = np.zeros(shape, np.uint8).repeat(inputs[0].itemsize, -1).view(inputs[0].dtype)
    else:  # what changes nothing
        want = inputs[0]
        y = reduced(op, [back(y), want]) if want.size else y
    expect(context, label, y, want, like=x if ranks else None, close=close)
    untouched(context, label, x, inputs[context.rank])


scan, exscan = partial(_scanned, "scan"), partial(_scanned, "exscan")


def scans_elsewhere(context: Context) -> None:
    """Asynchronous, in place, into out, beside other operations, and with shapes that differ."""
    group, rank = context.group, context.rank
    xs = [contents("float32", (1000, 7), r, 8, True) for r in range(context.size)]
    works = [group.scan(xs[rank], async_op=True), group.all_reduce(xs[rank], async_op=True),
             group.exscan(xs[rank], "max", async_op=True)]
    expect(context, "async scan", works[0].result(60), reduced("sum", xs[: rank + 1]))
    if rank:
        expect(context, "async exscan", works[2].result(60), reduced("max", xs[:rank]))
    else:
        context.check((works[2].result(60) == -np.inf).all(), "the identity of max")
    x, out = xs[rank].copy(), np.empty_like(xs[rank])
    context.check(group.scan(x, "min", out=out) is out, "out is returned")
    expect(context, "scan into out", out, reduced("min", xs[: rank + 1]))
    group.scan(x, "min", out=x)
    expect(context, "scan in place", x, out)
    x = xs[rank].copy()
    group.exscan(x, out=x)
    expect(context, "exscan in place", x, reduced("sum", xs[:rank]) if rank else np.zeros_like(x))
    expect(context, "scan of a strided array", group.scan(xs[rank].T), reduced("sum", xs[: rank + 1]).T)
    expect(context, "scan of 0-d", group.scan(np.array(rank + 1)), np.array((rank + 1) * (rank + 2) // 2))
    context.raises("scan of bits of floats", TypeError, "bxor", lambda: group.scan(xs[rank], "bxor"))
    context.raises("exscan into another shape", ValueError, "shape", lambda: group.exscan(xs[rank], out=out[1:]))


def functions_and_locations(context: Context, framework: str) -> None:
    """A function that is not commutative, in all that reduce; minloc and maxloc; scan and exscan; of arrays of any device."""
    group, size, me = context.group, context.size, context.rank
    xs = [contents("float32", (size * 5, 3), rank, 9) for rank in range(size)]
    x = given(context, framework, xs[me])
    less = lambda left, right: make(framework, back(left) * 2 - back(right))  # noqa: E731
    upto: list[np.ndarray[Any, Any]] = list(itertools.accumulate(xs, lambda left, right: np.asarray(left * 2 - right)))
    expect(context, "all_reduce by a function", group.all_reduce(x, less), upto[-1], like=x, shared=True)
    expect(context, "scan by a function", group.scan(x, less), upto[me], like=x)
    expect(context, "exscan by a function", group.exscan(x, less), upto[me - 1] if me else np.zeros_like(xs[0]))
    expect(context, "reduce_scatter by a function", group.reduce_scatter(x, less), upto[-1][me * 5 : me * 5 + 5])
    found = group.reduce(x, size - 1, less)
    context.check((found is None) == (me < size - 1), "reduce by a function gives the root alone")
    if found is not None:
        expect(context, "reduce by a function", found, upto[-1], like=x)
    expect(context, "scan", group.scan(x), reduced("sum", xs[: me + 1]), like=x)
    expect(context, "exscan", group.exscan(x), reduced("sum", xs[:me]) if me else np.zeros_like(xs[0]))
    for op, extreme in (("minloc", np.min(xs, 0)), ("maxloc", np.max(xs, 0))):
        ranks = np.argmax(np.array(xs) == extreme, 0).astype(np.int64)
        values, places = group.all_reduce(x, op)
        expect(context, op, values, extreme, like=x, shared=True)
        expect(context, f"ranks of {op}", places, ranks, shared=True)
        at_root = group.reduce(x, 0, op, index=given(context, framework, np.full_like(ranks, 7 - me)))
        context.check((at_root is None) == (me > 0), f"reduce {op} gives the root alone")
        if at_root is not None:
            last = size - 1 - np.argmax(np.array(xs)[::-1] == extreme, 0)
            expect(context, f"indices of {op}", at_root[1], 7 - last.astype(np.int64))


def sizes(context: Context, counts: Sequence[int], dtypes: Sequence[str] = ("float32", "bfloat16", "int8"),
          ops: Sequence[str] = ("sum", "max"), *, exact: bool = True, rough: bool = True) -> None:
    """Reductions of arrays of these many elements, with rough numbers: every edge of an algorithm is some count."""
    for count in counts:
        for dtype in dtypes:
            for op in ops:
                close = slack(context, dtype, op, rough=rough, exact=exact)
                all_reduce(context, "numpy", dtype, op, 1.0, (count,), rough, close)
                reduce(context, "numpy", dtype, op, 1.0, (count,), rough, close)
                reduce_scatter(context, "numpy", dtype, op, 1.0, (count,), rough, close)
                if op == "sum":
                    scan(context, "numpy", dtype, op, 1.0, (count,), rough, 0.0)
                    exscan(context, "numpy", dtype, op, 1.0, (count,), rough, 0.0)


def uneven_scatter(context: Context, rows: Sequence[Sequence[int]], dtype: str = "float32", *,
                   exact: bool = True) -> None:
    """reduce_scatter with counts: each entry of `rows` has a count per rank."""
    for counts in rows:
        counts = [counts[rank % len(counts)] for rank in range(context.size)]
        label = f"reduce_scatter {dtype} counts {counts}"
        inputs = [contents(dtype, (sum(counts), 3), rank, 4, True) for rank in range(context.size)]
        start = sum(counts[: context.rank])
        y = context.group.reduce_scatter(inputs[context.rank].copy(), counts=counts)
        want = reduced("sum", inputs)[start : start + counts[context.rank]]
        expect(context, label, y, want, close=slack(context, dtype, "sum", rough=True, exact=exact))


def long_uneven(context: Context) -> None:
    """Blocks of several segments: in bfloat16, which is added in wider partials, of one rank's alone and of two."""
    count = (1 << 21) + 5
    for counts in ([0] * (context.size - 1) + [count], [count, 3] + [0] * (context.size - 3) + [count // 2]):
        x = np.resize(np.arange(7), sum(counts)).astype(contents("bfloat16", (1,), 0).dtype)
        start = sum(counts[: context.rank])
        y = context.group.reduce_scatter(x, counts=counts)
        want = context.size * x[start : start + counts[context.rank]]
        context.check(np.array_equal(y, want), f"reduce_scatter of counts {counts}")


_SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e38, -1e38, 3e38, 1e-40, -1e-45, 65504.0, 6e4, 6e-8, 0.1)


def special_values(context: Context, dtypes: Sequence[str] = ("float16", "bfloat16", "float32", "float64")) -> None:
    """NaN, infinities, both zeros, subnormals and overflow: every pair of them meets in two ranks."""
    values = np.array(_SPECIAL)
    for dtype in dtypes:
        with np.errstate(over="ignore"):
            rows = [np.repeat(values, len(values)), np.tile(values, len(values))]
            inputs = [rows[rank % 2].astype(contents(dtype, (1,), 0).dtype) for rank in range(context.size)]
        for op in ("sum", "product", "min", "max", "avg"):
            label = f"all_reduce {dtype} {op} of special values"
            y = context.group.all_reduce(inputs[context.rank].copy(), op)
            expect(context, label, y, reduced(op, inputs), shared=True)


def wrapping(context: Context) -> None:
    """Integers wrap, whatever their order."""
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        inputs = [contents(dtype, (301,), rank, 5, True) for rank in range(context.size)]
        for op in ("sum", "product", "avg", "min", "max", "bxor"):
            y = context.group.all_reduce(inputs[context.rank].copy(), op)
            expect(context, f"all_reduce {dtype} {op} over the whole range", y, reduced(op, inputs), shared=True)


def bits_of_sums(context: Context, counts: Sequence[int]) -> list[bytes]:
    """The bits of float32 sums, for comparison between worlds."""
    results = []
    for count in counts:
        x = contents("float32", (count,), context.rank, 6, True).copy()
        y = context.group.all_reduce(x)
        context.same(f"all_reduce float32 sum of {count}", y)
        results.append(y.tobytes())
    return results

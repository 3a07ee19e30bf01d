"""Tasks: unusual shapes and strides, results in given arrays, and memory that overlaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .data import back, bits, contents, difference, framework_of, make, reduced
from .expect import expect, given, untouched
from .worlds import Context


def small(context: Context, framework: str) -> None:
    """0-d arrays, and arrays without elements."""
    group, size, me = context.group, context.size, context.rank
    for shape in ((), (0,), (0, 3), (3, 0), (1,), (1, 1, 1)):
        inputs = [contents("float32", shape, rank, 21) for rank in range(size)]
        x = given(context, framework, inputs[me])
        expect(context, f"all_reduce {shape}", group.all_reduce(x), reduced("sum", inputs), like=x, shared=True)
        expect(context, f"broadcast {shape}", group.broadcast(x, size - 1), inputs[size - 1], like=x, shared=True)
        joined = np.concatenate(inputs) if shape else np.stack(inputs)
        expect(context, f"all_gather {shape}", group.all_gather(x), joined, like=x, shared=True)
        expect(context, f"all_gather stack {shape}", group.all_gather(x, form="stack"), np.stack(inputs), like=x)
        total = group.reduce(x, 0)
        if me == 0:
            expect(context, f"reduce {shape}", total, reduced("sum", inputs), like=x)
    for shape in ((0,), (0, 4), (size, 0)):
        inputs = [contents("int16", shape, rank, 22) for rank in range(size)]
        x = given(context, framework, inputs[me])
        empty = np.zeros((shape[0] // size, *shape[1:]), np.int16)
        expect(context, f"reduce_scatter {shape}", group.reduce_scatter(x), empty, like=x)
        expect(context, f"all_to_all {shape}", group.all_to_all(x), np.zeros(shape, np.int16), like=x)


def _strided(base: np.ndarray[Any, Any]) -> dict[str, Callable[[Any], Any]]:
    """Views of an array of shape (6, 4), by name, that NumPy and torch both can make."""
    return {
        "transposed": lambda a: a.T if isinstance(a, np.ndarray) else a.t(),
        "every second row": lambda a: a[::2],
        "one column": lambda a: a[:, 1],
        "inner block": lambda a: a[1:5, 1:3],
        "one element": lambda a: a[2:3, 3:4],
        "broadcast": lambda a: (np.broadcast_to(a[:1], (5, 4)) if isinstance(a, np.ndarray) else a[:1].expand(5, 4)),
    }


def strided(context: Context, framework: str) -> None:
    """Inputs that are not contiguous are packed; the result is as if they had been."""
    for dtype in ("float32", "int8", "complex128"):
        bases = [contents(dtype, (6, 4), rank, 23) for rank in range(context.size)]
        for name, view in _strided(bases[0]).items():
            inputs = [np.ascontiguousarray(view(base)) for base in bases]
            x = view(make(framework, bases[context.rank]))
            _strided_in(context, f"{name} {dtype} {framework}", x, inputs)
    if framework == "numpy":
        bases = [contents("float64", (6, 4), rank, 24) for rank in range(context.size)]
        for name, index in (("backwards", (slice(None, None, -1),)), ("both backwards", (slice(None, None, -1),) * 2)):
            _strided_in(context, name, bases[context.rank][index], [np.ascontiguousarray(b[index]) for b in bases])


def _strided_in(context: Context, label: str, x: Any, inputs: list[np.ndarray[Any, Any]]) -> None:
    group, me = context.group, context.rank
    expect(context, f"all_reduce {label}", group.all_reduce(x), reduced("sum", inputs), like=x, shared=True)
    expect(context, f"broadcast {label}", group.broadcast(x, 0), inputs[0], like=x, shared=True)
    expect(context, f"all_gather {label}", group.all_gather(x), np.concatenate(inputs), like=x, shared=True)
    right, left = (me + 1) % context.size, (me - 1) % context.size
    work = group.isend(x, right)
    expect(context, f"send {label}", group.recv(left, like=x).array, inputs[left], like=x)
    work.wait(30)


def in_place(context: Context, framework: str) -> None:
    """out=x, and the forms where the input is a part of the output or the other way round."""
    group, size, me = context.group, context.size, context.rank
    for count in (1, 5, 1000, 40_000):
        inputs = [contents("float32", (count,), rank, 25) for rank in range(size)]
        x = given(context, framework, inputs[me])
        context.check(group.all_reduce(x, out=x) is x, "all_reduce in place gives out")
        expect(context, f"all_reduce in place {count}", x, reduced("sum", inputs), shared=True)
        x = given(context, framework, inputs[me])
        group.broadcast(x, size - 1, out=x)
        expect(context, f"broadcast in place {count}", x, inputs[size - 1], shared=True)
        x = given(context, framework, inputs[me])
        group.reduce(x, 0, out=x)
        expect(context, f"reduce in place {count}", x, reduced("sum", inputs) if me == 0 else inputs[me])
        whole = given(context, framework, np.concatenate([inputs[me]] * size))
        group.all_gather(whole[me * count : (me + 1) * count], out=whole)
        expect(context, f"all_gather in place {count}", whole, np.concatenate(inputs), shared=True)
        parts = [np.concatenate([contents("float32", (count,), rank, 26 + d) for d in range(size)])
                 for rank in range(size)]
        whole = given(context, framework, parts[me])
        mine = whole[me * count : (me + 1) * count]
        group.reduce_scatter(whole, out=mine)
        expect(context, f"reduce_scatter in place {count}", mine,
               reduced("sum", parts)[me * count : (me + 1) * count])


def given_out(context: Context, framework: str, others: Sequence[str] = ("numpy",)) -> None:
    """Results in separate arrays of the caller, which are returned; out may be of another library."""
    group, size, me = context.group, context.size, context.rank
    inputs = [contents("int32", (size, 2), rank, 27) for rank in range(size)]
    x = given(context, framework, inputs[me])
    column = [np.concatenate([array[me : me + 1] for array in inputs])]
    calls: list[tuple[str, Callable[[Any], Any], np.ndarray[Any, Any]]] = [
        ("all_reduce", lambda out: group.all_reduce(x, out=out), reduced("sum", inputs)),
        ("broadcast", lambda out: group.broadcast(x, 0, out=out), inputs[0]),
        ("all_gather", lambda out: group.all_gather(x, out=out), np.concatenate(inputs)),
        ("all_gather stack", lambda out: group.all_gather(x, form="stack", out=out), np.stack(inputs)),
        ("reduce_scatter", lambda out: group.reduce_scatter(x, out=out), reduced("sum", inputs)[me : me + 1]),
        ("all_to_all", lambda out: group.all_to_all(x, out=out), column[0]),
    ]
    for name, call, want in calls:
        for other in (framework, *others):
            out = make(other, np.zeros_like(want))
            context.check(call(out) is out, f"{name} gives its out")
            expect(context, f"{name} into out of {other}", out, want)
        untouched(context, name, x, inputs[me])


def writable_views(context: Context) -> None:
    """out may be a contiguous part of a larger array; nothing beside it is written."""
    base = np.full(30, 7, np.int64)
    context.group.all_reduce(np.arange(10), out=base[10:20])
    want = np.full(30, 7, np.int64)
    want[10:20] = np.arange(10) * context.size
    context.check(difference(base, want) is None, f"a part as out: {base}")


def jax_stays(context: Context) -> None:
    """JAX inputs are never written to, and results are JAX arrays that stay as they are."""
    array = contents("float32", (1000,), context.rank, 28)
    x = make("jax", array)
    held = [context.group.all_reduce(x), context.group.all_gather(x), context.group.broadcast(x, 0)]
    before = [bits(back(y)) for y in held]
    for _ in range(3):
        context.group.all_reduce(make("jax", array + 1))
        context.group.all_gather(make("jax", array + 1))
    context.check([bits(back(y)) for y in held] == before, "a result changed under later calls")
    context.check(all(framework_of(y) == "jax" for y in held), "results are JAX arrays")
    untouched(context, "jax", x, array)

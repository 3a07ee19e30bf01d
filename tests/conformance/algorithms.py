"""Tasks: collectives by whatever algorithm the settings say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from arraycomm.core.base.errors import CollectiveMismatch

from . import messages, movement, reductions
from .expect import slack
from .worlds import Context

COUNTS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 257, 1000, 4097)
_ROWS = [[1], [3, 0], [0, 0, 5], [300, 1, 0]]

_REDUCING: dict[str, Callable[..., None]] = {"all_reduce": reductions.all_reduce, "reduce": reductions.reduce,
             "reduce_scatter": reductions.reduce_scatter, "scan": reductions.scan, "exscan": reductions.exscan}
_MOVING = {"broadcast": movement.broadcast, "all_gather": movement.all_gather, "gather": movement.gather,
           "scatter": movement.scatter, "all_to_all": movement.all_to_all}


def forced(context: Context, kind: str, name: str, exact: bool, folder: str) -> None:
    """One algorithm of one collective, on many counts. `exact`: it promises the bits of rank order."""
    with context.variant({"ARRAYCOMM_ALGORITHM": f"{kind}={name}"}) as variant:
        if kind in _REDUCING:
            _reducing(variant, kind, exact)
        elif kind in _MOVING:
            _moving(variant, kind)
        elif kind == "recv":
            messages.long(variant)
        else:
            assert kind == "barrier", f"{kind} needs a task here"
            movement.barriers(variant, folder)


def unlike(context: Context, names: Sequence[str]) -> None:
    """Ranks that share memory: of some the call is by an algorithm for links, of others by one in the memory."""
    x = np.ones(8)
    for name in names:
        # suppress(): the variant ends with a barrier
        with contextlib.suppress(CollectiveMismatch), context.variant({"ARRAYCOMM_ALGORITHM": f"all_reduce={name}"}) as variant:
            call = variant.group.all_reduce if variant.rank else variant.group.all_gather
            variant.raises(f"all_gather beside all_reduce by {name}", CollectiveMismatch, "all_reduce", partial(call, x))


def _reducing(context: Context, kind: str, exact: bool) -> None:
    one = _REDUCING[kind]
    for dtype in ("float32", "bfloat16", "int64"):
        close = slack(context, dtype, "sum", rough=True, exact=exact)
        for count in COUNTS:
            one(context, "numpy", dtype, "sum", 1.0, (count,), True, close)
    for dtype in ("float16", "float64", "complex64", "uint8"):
        for op in ("product", "avg", "premul_sum"):
            close = slack(context, dtype, op, rough=False, exact=exact)
            one(context, "numpy", dtype, op, 3.0, (37,), False, close)
    if kind == "reduce_scatter":
        reductions.uneven_scatter(context, _ROWS, exact=exact)


def _moving(context: Context, kind: str) -> None:
    for dtype in ("int8", "float64"):
        for count in COUNTS:
            _MOVING[kind](context, "numpy", dtype, (count,))
    if kind in ("broadcast", "gather", "scatter"):
        movement.roots(context)
    else:
        movement.uneven(context, "numpy", _ROWS)


def varied(context: Context, environ: dict[str, str], counts: Sequence[int], exact: bool) -> None:
    """Everything under other settings."""
    with context.variant(environ) as variant:
        reductions.sizes(variant, counts, dtypes=("float32", "int8"), ops=("sum",), exact=exact)
        movement.sizes(variant, counts, dtypes=("int8", "float64"))
        movement.roots(variant)
        movement.uneven(variant, "numpy", [[1000, 0], [3, 2000, 1]])
        reductions.uneven_scatter(variant, [[1000, 0], [3, 2000, 1]], exact=exact)


def long_reductions(context: Context, count: int) -> None:
    """Exact ones: of several segments."""
    mine = np.arange(count) * (context.rank + 1)
    every, before = sum(range(context.size + 1)), sum(range(context.rank + 1))
    for label, y, want in (("all_reduce", context.group.all_reduce(mine), every), ("exscan", context.group.exscan(mine), before),
                           ("scan", context.group.scan(mine), before + context.rank + 1),
                           ("reduce", context.group.reduce(mine, 1), every)):
        here = label != "reduce" or context.rank == 1
        context.check(y is not None and np.array_equal(y, np.arange(count) * want) if here else y is None, label)


def unknown_names(context: Context) -> None:
    """A typing mistake is an error that names the choices, on every rank."""
    for value, told in (("all_reduce=rings", "ring"), ("all_reduce=rings:1", "ring"), ("all_reduce", "ring"),
                        ("sum=ring", "ring"), ("all_reduce=ring:", "no number of bytes"),
                        ("all_reduce=ring:4K", "no number of bytes"), (f"all_reduce=ring:{2**64}", "no number of bytes"),
                        ("ring", "ring"), ("library:1", "library"), ("recv=library", "library")):
        try:
            with context.variant({"ARRAYCOMM_ALGORITHM": value}):
                context.check(False, f"{value} was taken")
        except ValueError as error:
            context.check(repr(value) in str(error) and told in str(error), f"{value}: {error}")
    for value in ("library", "all_reduce=ring:10,barrier=library", "gather=library:100"):
        context.raises(value, ValueError, "'library' means MPI's own collectives, and group .* is not over MPI",
                       context.variant({"ARRAYCOMM_ALGORITHM": value}).__enter__)

"""Tasks: one collective, many counts, by whatever algorithm the world was told to use."""

from __future__ import annotations

from collections.abc import Sequence

from . import movement, reductions
from .expect import tolerance
from .worlds import Context


def reducing(context: Context, kind: str, name: str, counts: Sequence[int], exact: bool) -> None:
    one = {"all_reduce": reductions.all_reduce, "reduce": reductions.reduce,
           "reduce_scatter": reductions.reduce_scatter}[kind]
    for dtype in ("float32", "bfloat16", "int64", "complex64"):
        close = 0.0 if exact else tolerance(dtype, context.size)
        for count in counts:
            one(context, "numpy", dtype, "sum", 1.0, (count,), True, close)
        for op in ("product", "avg", "premul_sum"):
            one(context, "numpy", dtype, op, 3.0, (37,), False, close)
    if kind == "reduce_scatter":
        reductions.uneven_scatter(context, [[1], [3, 0], [0, 0, 5], [300, 1, 0]], exact=exact)


def moving(context: Context, kind: str, name: str, counts: Sequence[int]) -> None:
    if kind == "barrier":
        movement.barriers(context)
        return
    one = {"broadcast": movement.broadcast, "all_gather": movement.all_gather, "gather": movement.gather,
           "scatter": movement.scatter, "all_to_all": movement.all_to_all}[kind]
    for dtype in ("int8", "float64"):
        for count in counts:
            one(context, "numpy", dtype, (count,))
    movement.roots(context)
    movement.uneven(context, "numpy", [[1], [3, 0], [0, 0, 5], [300, 1, 0]])

"""What every task does with a result: compares it with the reference, and its bits between the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

import arraycomm

from .data import COMPLEX, FLOAT8, FRAMEWORKS, NARROW, back, bits, difference, framework_of, make, supports
from .worlds import Context

# One unit in the last place: what another order of additions in float32 can change after the one rounding at the end.
_UNIT = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "complex64": 1e-6, "float64": 4e-15, "complex128": 4e-15,
         **{name: 0.3 for name in FLOAT8}}


def slack(context: Context, dtype: str, op: str, *, rough: bool, exact: bool) -> float:
    """How far a result may be from the reference, relative to its largest magnitude; 0 where bits must agree.

    exact: the algorithm promises the bits of rank order. rough: the inputs are such that the order matters; it always
    does for the signs of zeros in complex products.
    """
    if exact or not (rough or (op == "product" and dtype in COMPLEX)):
        return 0.0
    unit = _UNIT.get(dtype, 0.0)
    return unit if dtype in NARROW else unit * context.size


def framework_here(context: Context, framework: str, dtype: str) -> str:
    """The framework of this rank: "mixed" gives every rank another one."""
    if framework != "mixed":
        return framework
    mine = FRAMEWORKS[context.rank % len(FRAMEWORKS)]
    return mine if supports(mine, dtype) else "numpy"


def operation(op: str, factor: float) -> Any:
    return arraycomm.premul_sum(factor) if op == "premul_sum" else op


def given(context: Context, framework: str, array: np.ndarray[Any, Any]) -> Any:
    """This rank's input."""
    return make(framework_here(context, framework, array.dtype.name), array)


def expect(context: Context, label: str, got: Any, want: np.ndarray[Any, Any], *, like: Any = None, close: float = 0.0,
           shared: bool = False) -> None:
    """`got` holds `want` (bit for bit, or as close as that), in like's library; `shared`: the same bits on all ranks."""
    array = back(got)
    wrong = difference(array, want, close)
    context.check(wrong is None, f"{label}: {wrong}")
    if like is not None:
        context.check(framework_of(got) == framework_of(like),
                      f"{label}: gave an array of {framework_of(got)} for one of {framework_of(like)}")
    if shared:
        context.same(label, array)


def untouched(context: Context, label: str, x: Any, was: np.ndarray[Any, Any]) -> None:
    context.check(bits(back(x)) == bits(was), f"{label}: the input was changed")



"""The reduction of parts that lie one after the other, in rank order, by XLA: for devices, where the engine cannot reach them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from arraycomm.core.arrays.types import ReduceOp

from .call import Call

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": jax.lax.add, "avg": jax.lax.add, "premul_sum": jax.lax.add, "product": jax.lax.mul, "min": jax.lax.min,
    "max": jax.lax.max, "band": jax.lax.bitwise_and, "bor": jax.lax.bitwise_or, "bxor": jax.lax.bitwise_xor}
_BOOL = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}


def reduce_in_order(x: Any, *, call: Call) -> Any:
    """Over the first dimension. Narrow floats are accumulated in float32, as the engine does."""
    op, wide = call.op, _wide(x.dtype)
    name = _BOOL.get(op.name, op.name) if x.dtype == jnp.bool_ else op.name
    total = functools.reduce(_COMBINE[name], [_scaled(part.astype(wide), op) for part in x])
    if name == "avg":
        total = jax.lax.div(total, jnp.full_like(total, len(x)))
    return total.astype(x.dtype)


def _wide(dtype: Any) -> Any:
    narrow = dtype.itemsize < 4 and dtype != jnp.bool_
    return jnp.float32 if narrow and jnp.issubdtype(dtype, jnp.floating) else dtype


def _scaled(part: Any, op: ReduceOp) -> Any:
    if op.name != "premul_sum":
        return part
    if not jnp.issubdtype(part.dtype, jnp.inexact) and not op.factor.is_integer():
        raise TypeError(f"{op} of {part.dtype} is not computed on a GPU: take a whole number, or floats")
    return part * jnp.asarray(op.factor, part.dtype)

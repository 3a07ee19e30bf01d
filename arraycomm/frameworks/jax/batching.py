"""vmap: one operation moves the whole batch. The same vmap is to be around it on all ranks."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.interpreters import batching

from .call import Call
from .primitives import PRIMITIVES


def _batched(operands: Any, dims: Any, *, call: Call) -> tuple[Any, Any]:
    (x,), (dim,) = operands, dims
    primitive = PRIMITIVES[call.kind]
    if call.kind == "all_gather":
        return primitive.bind(x, call=call), dim + 1
    if call.kind in ("reduce_scatter", "all_to_all", "reduce_parts"):  # the first dimension is the one that is cut
        result = primitive.bind(jnp.moveaxis(x, dim, 1), call=call)
        return result, 1 if call.kind == "all_to_all" else 0
    if call.kind == "send":
        return primitive.bind(jnp.moveaxis(x, dim, 0), call=call), []
    if call.kind == "recv":
        return primitive.bind(jnp.moveaxis(x, dim, 0), call=call), 0
    return primitive.bind(x, call=call), dim


for _kind, _primitive in PRIMITIVES.items():
    if _kind != "barrier":
        batching.primitive_batchers[_primitive] = _batched

"""replicate: arrays of which every rank has a copy, with one gradient for all copies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from arraycomm.core.group.group import Group

from .operations import check_group
from .trees import all_reduce_tree


def replicate(x: Any, *, group: Group) -> Any:
    """x itself, an array or a tree of arrays that are equal on all ranks. Its gradient is the average of the ranks' gradients.

    For a parameter where all ranks' losses are one value, as a sum by all_reduce is: its gradient is that value's, on all ranks.
    Nothing is sent before the backward pass, which every rank runs. Leaves that have no derivative (integers, bools, random
    keys, functions) are passed on as they are.

    - Shapes: any; a tree keeps its structure.
    - Dtypes: every one; floating and complex ones have gradients.
    - Memory: x itself, nothing is copied.
    - Blocks: never in the forward pass; in the backward pass as all_reduce().
    - Errors: TypeError where group is no arraycomm.Group.

    Examples:
        >>> def work(group):
        ...     def loss(w):
        ...         return comm.all_reduce(comm.replicate(w, group=group) * (group.rank + 1), group=group)
        ...     return float(jax.grad(loss)(1.0))
        >>> arraycomm.run(work, 2)
        [3.0, 3.0]
    """
    check_group(group)
    leaves, structure = jax.tree.flatten(x)
    numbers = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)]
    for i, leaf in zip(numbers, _PRIMITIVE.bind(*(leaves[i] for i in numbers), group=group), strict=True):
        leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


_PRIMITIVE = Primitive("arraycomm_replicate")  # of any number of arrays, so that their gradients share operations
_PRIMITIVE.multiple_results = True


def _jvp(primals: Any, tangents: Any, *, group: Group) -> tuple[Any, Any]:
    moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    along = list(tangents)
    for i, tangent in zip(moving, _PRIMITIVE.bind(*(tangents[i] for i in moving), group=group), strict=True):
        along[i] = tangent
    return list(primals), along


def _transpose(cotangents: Any, *operands: Any, group: Group) -> list[Any]:
    return list(all_reduce_tree([ad.instantiate_zeros(cotangent) for cotangent in cotangents], "avg", group=group))


_PRIMITIVE.def_impl(lambda *operands, group: list(operands))
_PRIMITIVE.def_abstract_eval(lambda *operands, group: list(operands))
mlir.register_lowering(_PRIMITIVE, lambda context, *operands, group: operands)
batching.primitive_batchers[_PRIMITIVE] = lambda operands, dims, *, group: (_PRIMITIVE.bind(*operands, group=group), dims)
ad.primitive_jvps[_PRIMITIVE] = _jvp
ad.primitive_transposes[_PRIMITIVE] = _transpose

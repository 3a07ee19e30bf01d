"""all_reduce of a whole tree of arrays, in few operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.core import trace_ctx

from arraycomm.core.arrays import arrays
from arraycomm.core.arrays.types import DType, ReduceOp
from arraycomm.core.group import arguments
from arraycomm.core.group.buckets import DEFAULT_BYTES, plan
from arraycomm.core.group.group import Group
from arraycomm.core.interface import tuning
from arraycomm.core.interface.kinds import KINDS

from . import effect
from .operations import all_gather, all_reduce, all_to_all, check_group, is_key, reduce_parts

_EXACT = ("min", "max", "band", "bor", "bxor")


def all_reduce_tree(tree: Any, op: str | ReduceOp = "avg", *, group: Group, bucket_bytes: int = DEFAULT_BYTES) -> Any:
    """The elementwise reduction of every rank's arrays; a tree of the same structure on all ranks.

    Arrays of one dtype share an operation until their bytes fill a bucket: the last leaves first, whose gradients are there
    first. The bits of the result do not depend on bucket_bytes, which is equal on all ranks. TypeError, naming the leaf, for
    one that is no array of a dtype of this package's.

    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Errors: TypeError for a leaf, ValueError for bucket_bytes; then as all_reduce().

    Examples:
        >>> def work(group):
        ...     return comm.all_reduce_tree({"w": jnp.ones(1) * group.rank}, "avg", group=group)["w"].tolist()
        >>> arraycomm.run(work, 2)
        [[0.5], [0.5]]
    """
    check_group(group)
    if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be an integer >= 1, got {bucket_bytes!r}")
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    arrays = [_array(leaf, path) for path, leaf in leaves]
    buckets = plan([array.nbytes for array in arrays], [array.dtype for array in arrays], bucket_bytes)
    packed = [jnp.concatenate([arrays[i].reshape(-1) for i in bucket]) if len(bucket) > 1 else arrays[bucket[0]].reshape(-1)
              for bucket in buckets]
    results: list[Any] = [None] * len(arrays)
    for bucket, whole in zip(buckets, _reduce(packed, op, group), strict=True):
        start = 0
        for i in bucket:
            results[i] = whole[start : start + arrays[i].size].reshape(arrays[i].shape)
            start += arrays[i].size
    return jax.tree.unflatten(structure, results)


def _array(leaf: Any, path: Any) -> jax.Array:
    try:
        array = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
        if is_key(array):
            raise TypeError(f"dtype {array.dtype}: {arrays.KEYS}")
        arguments.dtype(array.dtype)
    except TypeError as error:
        raise TypeError(f"leaf {jax.tree_util.keystr(path)} of the tree: {error}") from error
    return array


def _reduce(packed: Sequence[Any], op: str | ReduceOp, group: Group) -> list[Any]:
    reductions = [arguments.reduction(op, DType(arguments.dtype(x.dtype))) for x in packed]
    if not all(_same_bits(x, reduction, group) for x, reduction in zip(packed, reductions, strict=True)):
        return [_in_rank_order(x, reduction, group) for x, reduction in zip(packed, reductions, strict=True)]
    if not trace_ctx.is_top_level() or any(isinstance(x, jax.core.Tracer) for x in packed):
        return [all_reduce(x, op, group=group) for x in packed]
    effect.settle()
    under_way = [group.all_reduce(x, op, async_op=True) for x in packed]  # an all_reduce starts while the previous one runs
    return [work.result() for work in under_way]


def _same_bits(x: Any, op: ReduceOp, group: Group) -> bool:
    """Whether an element's result is the same wherever it stands in an array, and however long that is."""
    if group.size <= 2 or op.name in _EXACT or not jnp.issubdtype(x.dtype, jnp.inexact):
        return True
    ask: Callable[..., str] | None = getattr(group._communicator, "algorithm", None)
    dtype = arguments.dtype(x.dtype)
    kind = KINDS["all_reduce"]
    ordered = {row.name for row in tuning.rows() if row.kind == kind.name and row.ordered}
    return ask is not None and all(ask(kind.number, 1 << bits, dtype, op.code) in ordered for bits in range(40))


def _in_rank_order(x: Any, op: ReduceOp, group: Group) -> Any:
    """The same result by moving data only: the receiver of a part reduces it itself, in rank order."""
    padded = jnp.pad(x, (0, -x.size % group.size))
    parts = all_to_all(padded, group=group).reshape(group.size, -1)
    return all_gather(reduce_parts(parts, op, group=group), group=group)[: x.size]

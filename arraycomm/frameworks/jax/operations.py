"""The operations, for JAX arrays: usable eagerly and inside jit, scan, cond, while, vmap, grad and shard_map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import trace_ctx

from arraycomm.core.arrays import arrays
from arraycomm.core.arrays.types import DType, ReduceOp
from arraycomm.core.group import arguments, shapes
from arraycomm.core.group.group import Group

from . import eager
from .eager import Call
from .primitives import bind

_UNEVEN = "parts are even here: pad x, or call the Group's own method outside of programs, which takes counts"


def check_group(group: Any) -> None:
    """TypeError unless it is a Group of the core."""
    if not isinstance(group, Group):
        hint = "; it has one: group.core" if isinstance(getattr(group, "core", None), Group) else ""
        raise TypeError(f"group must be an arraycomm.Group, as arraycomm.init() gives, got {type(group).__name__}{hint}")


def is_key(x: Any) -> bool:
    """Of jax.random.key(), whose dtype is none of NumPy's."""
    return not isinstance(x.dtype, np.dtype)


def _array(x: Any, group: Any) -> Any:
    """x as JAX's array, of a dtype that can be moved, by that group."""
    check_group(group)
    if not isinstance(x, jax.Array):
        if not jax.tree_util.all_leaves([x]):
            raise TypeError(f"expected one array, got {type(x).__name__}: all_reduce_tree() reduces a tree of arrays; for other "
                            "operations use jax.tree.map(), or join its arrays by jnp.stack()")
        x = jnp.asarray(x)
    if not is_key(x):
        arguments.dtype(x.dtype)
    return x


def _run(x: Any, call: Call) -> Any:
    if x is not None and is_key(x):  # the words of each key, along a last dimension more
        moved = _run(jax.random.key_data(x), call)
        return None if moved is None else jax.random.wrap_key_data(moved, impl=jax.random.key_impl(x))
    if trace_ctx.is_top_level() and not isinstance(x, jax.core.Tracer):
        result = eager.run(x, call)
        return None if call.kind in ("barrier", "send") else result
    return bind(x, call)


def _reduction(x: Any, op: str | ReduceOp) -> ReduceOp:
    if is_key(x):
        raise TypeError(f"dtype {x.dtype}: {arrays.KEYS}")
    return arguments.reduction(op, DType(arguments.dtype(x.dtype)))


def all_reduce(x: Any, op: str | ReduceOp = "sum", *, group: Group) -> jax.Array:
    """The elementwise reduction of every rank's x, on every rank. The bits are the same on all ranks."""
    x = _array(x, group)
    return _run(x, Call("all_reduce", group, _reduction(x, op)))


def scan(x: Any, op: str | ReduceOp = "sum", *, group: Group) -> jax.Array:
    """The reduction of the x of this rank and of those before it, in rank order; see Group.scan()."""
    x = _array(x, group)
    return _run(x, Call("scan", group, _reduction(x, op)))


def exscan(x: Any, op: str | ReduceOp = "sum", *, group: Group) -> jax.Array:
    """As scan(), without this rank's own; rank 0 gets the reduction's identity, see Group.exscan()."""
    x = _array(x, group)
    return _run(x, Call("exscan", group, _reduction(x, op)))


def all_gather(x: Any, *, form: str = "concat", group: Group) -> jax.Array:
    """Every rank's x, in rank order: joined along the first dimension ("concat"), or along a new one in front ("stack").

    Of equal shapes.
    """
    x = _array(x, group)
    if form not in ("concat", "stack"):
        raise ValueError(f"form must be 'concat' or 'stack', got {form!r}")
    stacked = _run(x, Call("all_gather", group))
    return stacked.reshape(shapes.gathered(x.shape, group.size, form, None))


def reduce_scatter(x: Any, op: str | ReduceOp = "sum", *, group: Group) -> jax.Array:
    """The reduction of every rank's x, cut into equal parts along the first dimension; rank r gets part r."""
    x = _array(x, group)
    part = shapes.divided(x.shape, group.size, "reduce_scatter", _UNEVEN)
    return _run(x.reshape(group.size, *part), Call("reduce_scatter", group, _reduction(x, op)))


def all_to_all(x: Any, *, group: Group) -> jax.Array:
    """Equal parts of x along the first dimension, part d to rank d; the result joins those that come, in rank order."""
    x = _array(x, group)
    part = shapes.divided(x.shape, group.size, "all_to_all", _UNEVEN)
    return _run(x.reshape(group.size, *part), Call("all_to_all", group)).reshape(x.shape)


def broadcast(x: Any, root: int = 0, *, group: Group) -> jax.Array:
    """The root's x on every rank; elsewhere x tells shape and dtype."""
    x = _array(x, group)
    return _run(x, Call("broadcast", group, root=arguments.root(root, group.size)))


def reduce(x: Any, root: int = 0, op: str | ReduceOp = "sum", *, group: Group) -> jax.Array:
    """As all_reduce, but only the root gets the result; the other ranks get zeros."""
    x = _array(x, group)
    return _run(x, Call("reduce", group, root=arguments.root(root, group.size), op=_reduction(x, op)))


def permute(x: Any, pairs: Sequence[tuple[int, int]], tag: int = 0, *, group: Group) -> jax.Array:
    """x from rank to rank, by (source, dest) pairs, all at once; a rank that is nobody's dest gets zeros.

    Each rank is the source of at most one pair, and the dest of at most one. The same pairs on all ranks.
    """
    x = _array(x, group)
    tag = arguments.tag(tag)
    pairs = [_pair(pair, group.size) for pair in pairs]
    sources, dests = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(set(sources)) < len(sources) or len(set(dests)) < len(dests):
        raise ValueError(f"permute takes each rank as source once and as dest once at most, got {pairs}")
    to, back = dict(pairs), {dest: source for source, dest in pairs}
    return _run(x, Call("permute", group, root=to.get(group.rank, -1), source=back.get(group.rank, -1), tag=tag))


def _pair(pair: Any, size: int) -> tuple[int, int]:
    """Of any kind, as a row of NumPy's."""
    try:
        source, dest = pair
    except (TypeError, ValueError):
        raise ValueError(f"permute takes pairs of (source, dest), got {pair!r} among them") from None
    return arguments.rank("source", source, size), arguments.rank("dest", dest, size)


def send(x: Any, dest: int, tag: int = 0, *, group: Group) -> None:
    """Sends x to rank `dest`, which receives it by recv(). Blocks as Group.send(): to exchange arrays, use permute()."""
    x = _array(x, group)
    _run(x, Call("send", group, root=arguments.rank("dest", dest, group.size), tag=arguments.tag(tag)))


def recv(source: int | None = None, tag: int = 0, *, like: Any, group: Group) -> jax.Array:
    """A message of like's shape and dtype, from rank `source` or any (None)."""
    source = arguments.source(source, group.size)
    tag = arguments.tag(tag)
    like = _array(like, group)
    return _run(like, Call("recv", group, root=-1 if source is None else source, tag=tag))


def reduce_parts(x: Any, op: ReduceOp, *, group: Group) -> jax.Array:
    """The reduction of x over its first dimension, in order, with the engine's bits: a part of every rank. Nothing is sent."""
    return _run(x, Call("reduce_parts", group, op))


def barrier(*, group: Group) -> None:
    """Ends when every rank has called it; what comes after it among these operations comes after it."""
    check_group(group)
    _run(None, Call("barrier", group))

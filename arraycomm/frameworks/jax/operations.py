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
    """Whether x is an array of jax.random.key(), whose dtype NumPy does not have."""
    return not isinstance(x.dtype, np.dtype)


def _array(x: Any, group: Any) -> Any:
    """x as a JAX array of a dtype that the group can move."""
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
    """The elementwise reduction of every rank's x, on every rank. The bits are the same on all ranks.

    - Shapes: any, the same on all ranks; the result has x's.
    - Dtypes: those for which op is defined; float16 and bfloat16 accumulate in float32.
    - Memory: x stays as it is; the result is a new array. A donated x may be reused by XLA.
    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: TypeError, ValueError when called or traced; then Group.all_reduce()'s, inside jit by errors().
    - Algorithm: that of Group.all_reduce(); a compiled program calls the engine without Python.

    Examples:
        >>> def work(group):
        ...     return jax.jit(lambda x: comm.all_reduce(x, group=group))(jnp.ones(2)).tolist()
        >>> arraycomm.run(work, 2)
        [[2.0, 2.0], [2.0, 2.0]]
    """
    x = _array(x, group)
    return _run(x, Call("all_reduce", group, _reduction(x, op)))


def scan(x: Any, op: str | ReduceOp = "sum", *, group: Group) -> jax.Array:
    """The reduction of the x of this rank and of those before it, in rank order; see Group.scan().

    - Shapes: any, the same on all ranks; the result has x's.
    - Dtypes: those for which op is defined; float16 and bfloat16 accumulate in float32.
    - Memory: x stays as it is; the result is a new array. A donated x may be reused by XLA.
    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: TypeError, ValueError when called or traced; then Group.scan()'s, inside jit by errors().
    - Algorithm: that of Group.scan(); a compiled program calls the engine without Python.

    Examples:
        >>> arraycomm.run(lambda group: comm.scan(jnp.ones(1), group=group).tolist(), 2)
        [[1.0], [2.0]]
    """
    x = _array(x, group)
    return _run(x, Call("scan", group, _reduction(x, op)))


def exscan(x: Any, op: str | ReduceOp = "sum", *, group: Group) -> jax.Array:
    """As scan(), without this rank's own; rank 0 gets the reduction's identity, see Group.exscan().

    - Shapes: any, the same on all ranks; the result has x's.
    - Dtypes: those for which op is defined; float16 and bfloat16 accumulate in float32.
    - Memory: x stays as it is; the result is a new array. A donated x may be reused by XLA.
    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: TypeError, ValueError when called or traced; then Group.exscan()'s, inside jit by errors().
    - Algorithm: that of Group.exscan(); a compiled program calls the engine without Python.

    Examples:
        >>> arraycomm.run(lambda group: comm.exscan(jnp.ones(1), group=group).tolist(), 2)
        [[0.0], [1.0]]
    """
    x = _array(x, group)
    return _run(x, Call("exscan", group, _reduction(x, op)))


def all_gather(x: Any, *, form: str = "concat", group: Group) -> jax.Array:
    """Every rank's x, in rank order: joined along the first dimension ("concat"), or along a new one in front ("stack").

    Of equal shapes.

    - Shapes: the same on all ranks.
    - Dtypes: every one, random keys too.
    - Memory: x stays as it is; the result is a new array. A donated x may be reused by XLA.
    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: TypeError, ValueError when called or traced; then Group.all_gather()'s, inside jit by errors().
    - Algorithm: that of Group.all_gather(); a compiled program calls the engine without Python.

    Examples:
        >>> arraycomm.run(lambda group: comm.all_gather(jnp.full(1, group.rank), group=group).tolist(), 2)
        [[0, 1], [0, 1]]
    """
    x = _array(x, group)
    if form not in ("concat", "stack"):
        raise ValueError(f"form must be 'concat' or 'stack', got {form!r}")
    stacked = _run(x, Call("all_gather", group))
    return stacked.reshape(shapes.gathered(x.shape, group.size, form, None))


def reduce_scatter(x: Any, op: str | ReduceOp = "sum", *, group: Group) -> jax.Array:
    """The reduction of every rank's x, cut into equal parts along the first dimension; rank r gets part r.

    - Shapes: the first dimension is a multiple of the group's size.
    - Dtypes: those for which op is defined; float16 and bfloat16 accumulate in float32.
    - Memory: x stays as it is; the result is a new array. A donated x may be reused by XLA.
    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: TypeError, ValueError when called or traced; then Group.reduce_scatter()'s, inside jit by errors().
    - Algorithm: that of Group.reduce_scatter(); a compiled program calls the engine without Python.

    Examples:
        >>> arraycomm.run(lambda group: comm.reduce_scatter(jnp.arange(2), group=group).tolist(), 2)
        [[0], [2]]
    """
    x = _array(x, group)
    part = shapes.divided(x.shape, group.size, "reduce_scatter", _UNEVEN)
    return _run(x.reshape(group.size, *part), Call("reduce_scatter", group, _reduction(x, op)))


def all_to_all(x: Any, *, group: Group) -> jax.Array:
    """Equal parts of x along the first dimension, part d to rank d; the result joins those that come, in rank order.

    - Shapes: the first dimension is a multiple of the group's size.
    - Dtypes: every one, random keys too.
    - Memory: x stays as it is; the result is a new array. A donated x may be reused by XLA.
    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: TypeError, ValueError when called or traced; then Group.all_to_all()'s, inside jit by errors().
    - Algorithm: that of Group.all_to_all(); a compiled program calls the engine without Python.

    Examples:
        >>> arraycomm.run(lambda group: comm.all_to_all(jnp.array([10, 20]) + group.rank, group=group).tolist(), 2)
        [[10, 11], [20, 21]]
    """
    x = _array(x, group)
    part = shapes.divided(x.shape, group.size, "all_to_all", _UNEVEN)
    return _run(x.reshape(group.size, *part), Call("all_to_all", group)).reshape(x.shape)


def broadcast(x: Any, root: int = 0, *, group: Group) -> jax.Array:
    """The root's x on every rank; the other ranks' x gives shape and dtype.

    - Shapes: any, the same on all ranks.
    - Dtypes: every one, random keys too.
    - Memory: x stays as it is; the result is a new array. A donated x may be reused by XLA.
    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: TypeError, ValueError when called or traced; then Group.broadcast()'s, inside jit by errors().
    - Algorithm: that of Group.broadcast(); a compiled program calls the engine without Python.

    Examples:
        >>> arraycomm.run(lambda group: comm.broadcast(jnp.full(1, group.rank), root=1, group=group).tolist(), 2)
        [[1], [1]]
    """
    x = _array(x, group)
    return _run(x, Call("broadcast", group, root=arguments.root(root, group.size)))


def reduce(x: Any, root: int = 0, op: str | ReduceOp = "sum", *, group: Group) -> jax.Array:
    """As all_reduce, but only the root gets the result; the other ranks get zeros.

    - Shapes: any, the same on all ranks; the result has x's.
    - Dtypes: those for which op is defined; float16 and bfloat16 accumulate in float32.
    - Memory: x stays as it is; the result is a new array. A donated x may be reused by XLA.
    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: TypeError, ValueError when called or traced; then Group.reduce()'s, inside jit by errors().
    - Algorithm: that of Group.reduce(); a compiled program calls the engine without Python.

    Examples:
        >>> arraycomm.run(lambda group: comm.reduce(jnp.ones(2), root=1, group=group).tolist(), 2)
        [[0.0, 0.0], [2.0, 2.0]]
    """
    x = _array(x, group)
    return _run(x, Call("reduce", group, root=arguments.root(root, group.size), op=_reduction(x, op)))


def permute(x: Any, pairs: Sequence[tuple[int, int]], tag: int = 0, *, group: Group) -> jax.Array:
    """Sends x from rank to rank, by (source, dest) pairs, at the same time; a rank that is no dest gets zeros.

    Each rank is the source of at most one pair, and the dest of at most one. The same pairs on all ranks.

    - Shapes: any, the same on a source and its dest.
    - Dtypes: every one, random keys too.
    - Memory: x stays as it is; the result is a new array. A donated x may be reused by XLA.
    - Blocks: eagerly until this rank's message is sent and received; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: ValueError for pairs that are none; then as Group.sendrecv(), inside jit by errors().

    Examples:
        >>> arraycomm.run(lambda group: comm.permute(jnp.full(1, group.rank), [(0, 1), (1, 0)], group=group).tolist(), 2)
        [[1], [0]]
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
    """Sends x to rank `dest`, which receives it by recv(). Blocks as Group.send(): to exchange arrays, use permute().

    - Shapes: any; the receiver's `like` has it too.
    - Dtypes: every one, random keys too.
    - Memory: x stays as it is.
    - Blocks: eagerly until x is on its way or received; in a program when that runs.
    - Timeout: the group's own.
    - Errors: ValueError for dest and tag; then as Group.send(), inside jit by errors().

    Examples:
        >>> def work(group):
        ...     if group.rank == 0:
        ...         return comm.send(jnp.ones(1), dest=1, group=group)
        ...     return comm.recv(source=0, like=jnp.zeros(1), group=group).tolist()
        >>> arraycomm.run(work, 2)
        [None, [1.0]]
    """
    x = _array(x, group)
    _run(x, Call("send", group, root=arguments.rank("dest", dest, group.size), tag=arguments.tag(tag)))


def recv(source: int | None = None, tag: int = 0, *, like: Any, group: Group) -> jax.Array:
    """A message of like's shape and dtype, from rank `source` or any (None).

    - Shapes: that of like; the message has it too.
    - Dtypes: that of like.
    - Memory: like is not changed, nor read; the result is a new array.
    - Blocks: eagerly until the message is here; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: ValueError for source and tag; then as Group.recv(), inside jit by errors().

    Examples:
        >>> def work(group):
        ...     if group.rank == 0:
        ...         return comm.send(jnp.ones(1), dest=1, tag=2, group=group)
        ...     return comm.recv(tag=2, like=jnp.zeros(1), group=group).tolist()
        >>> arraycomm.run(work, 2)
        [None, [1.0]]
    """
    source = arguments.source(source, group.size)
    tag = arguments.tag(tag)
    like = _array(like, group)
    return _run(like, Call("recv", group, root=-1 if source is None else source, tag=tag))


def reduce_parts(x: Any, op: ReduceOp, *, group: Group) -> jax.Array:
    """The reduction of x over its first dimension, in order, with the engine's bits: a part of every rank. Nothing is sent."""
    return _run(x, Call("reduce_parts", group, op))


def barrier(*, group: Group) -> None:
    """Ends when every rank has called it; what comes after it among these operations comes after it.

    - Blocks: eagerly until every rank has called it; in a program when its result is needed.
    - Timeout: the group's own.
    - Errors: as Group.barrier(), inside jit by errors().
    - Algorithm: that of Group.barrier(); a compiled program calls the engine without Python.

    Examples:
        >>> arraycomm.run(lambda group: comm.barrier(group=group), 2)
        [None, None]
    """
    check_group(group)
    _run(None, Call("barrier", group))

"""Operations outside compiled programs: the group's own methods, ordered after the running programs. And the reduction of
consecutive parts by XLA, for device memory that the engine cannot access."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from arraycomm.core.arrays.dlpack import allocate, resolve, wrap
from arraycomm.core.arrays.types import OPS, DeviceType, ReduceOp
from arraycomm.core.base.errors import DistError
from arraycomm.core.group.group import Group
from arraycomm.core.group.local import reduce_into
from arraycomm.core.interface.kinds import KINDS

from . import effect, errors


class Call(NamedTuple):
    """An operation's parameters besides its array. Hashable and comparable, as it is part of compiled programs' cache keys.

    root: of a permutation the rank that is sent to; of a message the peer. source: of a permutation. -1: none. derived: of a
    derivative.
    """

    kind: str
    group: Group
    op: ReduceOp = OPS["sum"]
    root: int = -1
    source: int = -1
    tag: int = 0
    derived: bool = False


def merged(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that the group's methods take: the dimension that is cut is not one of its own there."""
    return tuple(shape) if len(shape) == 1 else (shape[0] * shape[1], *shape[2:])


def run(x: Any, call: Call) -> Any:
    """Runs the operation at once, on a concrete x."""
    effect.settle()
    try:
        return _RUN.get(call.kind, _method)(call.group, x, call)
    except DistError as error:
        if call.derived:
            errors.derived(error)
        raise


def _method(group: Any, x: Any, call: Call) -> Any:
    return getattr(group, call.kind)(x, *([call.op] if KINDS[call.kind].reduces else []))


def _reduce(group: Any, x: Any, call: Call) -> Any:
    result = group.reduce(x, call.root, call.op)
    return jnp.zeros_like(x) if result is None else result


def _permute(group: Any, x: Any, call: Call) -> Any:
    sent = group.isend(x, call.root, call.tag) if call.root >= 0 else None
    result = group.recv(call.source, call.tag, like=x).array if call.source >= 0 else jnp.zeros_like(x)
    if sent is not None:
        sent.wait()
    return result


def _reduce_parts(group: Any, x: Any, call: Call) -> Any:
    """In rank order, with the bits of the engine's reductions where the engine can read x."""
    src = resolve(x)
    if src.device_type != DeviceType.CPU:
        return _by_xla(x, call=call)
    out = allocate(tuple(x.shape[1:]), src.dtype)
    reduce_into(out, [src.part(i * out.count, out.shape) for i in range(group.size)], call.op)
    return wrap(out, x)


_RUN: dict[str, Callable[[Any, Any, Call], jax.Array | list[Any]]] = {
    "reduce": _reduce,
    "broadcast": lambda group, x, call: group.broadcast(x, call.root),
    "all_gather": lambda group, x, call: group.all_gather(x, form="stack"),
    "reduce_scatter": lambda group, x, call: group.reduce_scatter(x.reshape(merged(x.shape)), call.op).reshape(x.shape[1:]),
    "all_to_all": lambda group, x, call: group.all_to_all(x.reshape(merged(x.shape))).reshape(x.shape),
    "permute": _permute,
    "reduce_parts": _reduce_parts,
    "send": lambda group, x, call: group.send(x, call.root, call.tag) or [],
    "recv": lambda group, x, call: group.recv(None if call.root < 0 else call.root, call.tag, like=x).array,
    "barrier": lambda group, x, call: group.barrier() or [],
}
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


_by_xla = jax.jit(reduce_in_order, static_argnames="call")

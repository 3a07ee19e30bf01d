"""Operations outside compiled programs: the group's own methods, in order with the programs that are under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from arraycomm._engine import lib
from arraycomm.core.arrays.dlpack import allocate, resolve, wrap
from arraycomm.core.arrays.types import DeviceType
from arraycomm.core.base.errors import DistError
from arraycomm.core.interface.kinds import KINDS

from . import effect, errors
from .call import Call
from .parts import reduce_in_order

_by_xla = jax.jit(reduce_in_order, static_argnames="call")


def merged(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that the group's methods take: the dimension that is cut is not one of its own there."""
    return tuple(shape) if len(shape) == 1 else (shape[0] * shape[1], *shape[2:])


def run(x: Any, call: Call) -> Any:
    """The operation at once, on a concrete x."""
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


def _reduce_scatter(group: Any, x: Any, call: Call) -> Any:
    return group.reduce_scatter(x.reshape(merged(x.shape)), call.op).reshape(x.shape[1:])


def _all_to_all(group: Any, x: Any, call: Call) -> Any:
    return group.all_to_all(x.reshape(merged(x.shape))).reshape(x.shape)


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
    addresses = [src.address + i * out.nbytes for i in range(group.size)]
    code = lib.acomm_reduce_local(out.address, addresses, group.size, out.count, src.dtype, call.op.code, call.op.factor)
    assert code == 0, code  # operation and dtype have been checked
    return wrap(out, x)


def _send(group: Any, x: Any, call: Call) -> list[Any]:
    group.send(x, call.root, call.tag)
    return []


def _barrier(group: Any, x: Any, call: Call) -> list[Any]:
    group.barrier()
    return []


_RUN: dict[str, Callable[[Any, Any, Call], jax.Array | list[Any]]] = {
    "reduce": _reduce,
    "broadcast": lambda group, x, call: group.broadcast(x, call.root),
    "all_gather": lambda group, x, call: group.all_gather(x, form="stack"),
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
    "reduce_parts": _reduce_parts,
    "send": _send,
    "recv": lambda group, x, call: group.recv(None if call.root < 0 else call.root, call.tag, like=x).array,
    "barrier": _barrier,
}

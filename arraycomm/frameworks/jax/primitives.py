"""One JAX primitive per operation: its result's shape, its vmap, and how a compiled program calls the engine.

`x` is as the operation moves it: reduce_scatter and all_to_all cut a first dimension that is as long as the group, and
all_gather's result has such a dimension more. reduce_parts reduces over such a dimension here.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import abstract_token, get_cur_mesh_sharding
from jax._src.interpreters.mlir import full_like_aval
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.interpreters.mlir import ir

from arraycomm._engine import ffi, lib
from arraycomm.core.arrays.types import DeviceType
from arraycomm.core.group import arguments, shapes
from arraycomm.core.group.group import Group
from arraycomm.core.interface.kinds import COLLECTIVES, KINDS

from . import cuda, eager, errors
from .eager import Call, reduce_in_order
from .effect import EFFECT
from .leaving import watch

_TARGET = "arraycomm_call"
_KINDS = {kind.name: kind.number for kind in KINDS.values() if not kind.rooted or not (kind.cuts or kind.joins)}
_KINDS |= {"permute": lib.ACOMM_XLA_PERMUTE, "reduce_parts": lib.ACOMM_XLA_REDUCE_PARTS}
_SILENT = tuple(name for name, kind in KINDS.items() if kind.gets == lib.ACOMM_NOBODY)  # without a result
# The engine may write the result over x.
_IN_PLACE = tuple(name for name, kind in KINDS.items() if kind.array == lib.ACOMM_WHOLE and kind.gets == lib.ACOMM_ALL)
_CUT = ("reduce_parts", *(name for name, kind in KINDS.items() if kind.cuts))


def bind(x: Any, call: Call) -> Any:
    """Binds the operation to a traced or a concrete x (None for a barrier)."""
    operands = () if x is None else (x,)
    result = PRIMITIVES[call.kind].bind(*operands, call=call)
    return None if call.kind in _SILENT else result


def _shape(x: Any, call: Call) -> tuple[int, ...]:
    joins = call.kind in KINDS and KINDS[call.kind].joins
    rest = tuple(x.shape[1:] if call.kind in _CUT else x.shape)
    return (call.group.size, *rest) if joins else rest


def _abstract(*operands: Any, call: Call) -> tuple[Any, set[Any]]:
    if call.kind in _SILENT:
        return [], {EFFECT}
    x = operands[0]  # inside shard_map it says over which axes it varies, and so does the result
    return x.update(shape=_shape(x, call), weak_type=False, sharding=get_cur_mesh_sharding()), {EFFECT}


def _batched(operands: Any, dims: Any, *, call: Call) -> tuple[Any, Any]:
    """vmap: one operation moves the whole batch. All ranks must apply the same vmap."""
    (x,), (dim,) = operands, dims
    primitive = PRIMITIVES[call.kind]
    if call.kind == "all_gather":
        return primitive.bind(x, call=call), dim + 1
    if call.kind in _CUT:  # the first dimension is the one that is cut
        result = primitive.bind(jnp.moveaxis(x, dim, 1), call=call)
        return result, 1 if call.kind == "all_to_all" else 0
    if call.kind in ("send", "recv"):
        return primitive.bind(jnp.moveaxis(x, dim, 0), call=call), [] if call.kind == "send" else 0
    return primitive.bind(x, call=call), dim


# ---- the call in a program ----

lib.acomm_xla_report(id(errors.report))
lib.acomm_xla_enqueuer(id(cuda.enqueue))


def number(group: Group, platform: str) -> int:
    """The group's number in programs for this platform of JAX's. TypeError where they cannot call it."""
    shortcut = group._communicator.shortcut
    if shortcut is None or (platform == "cpu" and DeviceType.CPU not in group._movers):
        raise TypeError(f"backend {group.backend!r} cannot be called by compiled programs; call it outside jit")
    found = int(shortcut.number(group))
    errors.place(found, group)
    cuda.know(found, group)
    return found


def _has_part(call: Call, side: str, peer: int) -> bool:
    """Whether this rank "gives" its x, or "gets" a result; otherwise that is zeros, which XLA makes. peer: of a permutation."""
    if call.kind not in KINDS:
        return call.kind != "permute" or peer >= 0
    kind = KINDS[call.kind]
    return kind.has_part(getattr(kind, side), call.group.rank, call.root)


def _fields(call: Call, operands: Any, platform: str) -> np.ndarray[Any, Any]:
    """The values of enum acomm_xla_field."""
    x = operands[0] if operands else ShapedArray((0,), np.dtype("int8"))
    shape = eager.merged(x.shape) if call.kind in _CUT else x.shape
    count = int(np.prod(shape, dtype=np.int64)) // (call.group.size if call.kind in _CUT else 1)
    bits = struct.unpack("=q", struct.pack("=d", call.op.factor))[0]
    compared = call.kind in COLLECTIVES and operands
    values = [number(call.group, platform), _KINDS[call.kind], count, arguments.dtype(x.dtype), call.op.code, bits, call.root,
              call.source, call.tag, shapes.layout(tuple(shape)) if compared else 0, _has_part(call, "gives", call.root),
              call.derived]
    assert len(values) == lib.ACOMM_XLA_FIELDS
    return np.array(values, np.int64)


def _may_be_overwritten(value: Any) -> bool:
    """Whether a result may take this operand's memory: not where it is an argument of the program that is not donated.

    Where it is needed later, XLA copies it first.
    """
    if not isinstance(value, ir.BlockArgument):
        return True
    function = value.owner.owner
    if function.name != "func.func" or function.attributes["sym_visibility"] != ir.StringAttr.get("public"):
        return True
    attributes = ir.ArrayAttr(function.attributes["arg_attrs"])[value.arg_number]
    return "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes


def _lower(context: Any, *operands: Any, call: Call, platform: str) -> Any:
    in_place = call.kind in _IN_PLACE and _may_be_overwritten(operands[0])
    token = context.tokens_in.get(EFFECT)
    written = context.avals_out if _has_part(call, "gets", call.source) else ()
    with_token = context.replace(avals_in=(*context.avals_in, abstract_token), avals_out=(*written, abstract_token))
    watch(call.group)
    rule = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True, operand_output_aliases={0: 0} if in_place else None)
    *results, token = rule(with_token, *operands, token, call=_fields(call, context.avals_in, platform))
    context.set_tokens_out(mlir.TokenSet({EFFECT: token}))
    return results or [full_like_aval(context, 0, aval) for aval in context.avals_out]


def _register() -> None:
    import ctypes  # jax.ffi.pycapsule() takes a ctypes function

    for platform, name in (("cpu", "acomm_xla_call"), ("CUDA", "acomm_xla_enqueue")):
        address = int(ffi.cast("uintptr_t", ffi.addressof(lib, name)))
        handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
        jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(handler), platform=platform)


def _primitive(kind: str) -> Primitive:
    primitive = Primitive(f"arraycomm_{kind}")
    primitive.multiple_results = kind in _SILENT
    primitive.def_impl(lambda *operands, call: eager.run(operands[0] if operands else None, call))
    primitive.def_effectful_abstract_eval(_abstract)
    if kind != "barrier":
        batching.primitive_batchers[primitive] = _batched
    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, functools.partial(_lower, platform=platform), platform=platform)
    return primitive


_register()
PRIMITIVES = {kind: _primitive(kind) for kind in _KINDS}
mlir.register_lowering(PRIMITIVES["reduce_parts"], mlir.lower_fun(reduce_in_order, multiple_results=False), platform="cuda")

"""Derivatives. The loss is the sum of all ranks' losses: a rank's gradient is that sum's gradient by the rank's own arrays.

So sum transposes to sum, all_gather to reduce_scatter and vice versa, and broadcast to reduce.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad

from arraycomm.core.arrays.types import OPS
from arraycomm.core.interface.kinds import KINDS

from .eager import Call
from .primitives import PRIMITIVES, bind

_LINEAR = ("sum", "avg", "premul_sum")
_SUM = OPS["sum"]


def _transposed(call: Call) -> Call:
    """The call that moves cotangents back."""
    call = call._replace(derived=True)
    if call.kind == "reduce":
        return call._replace(kind="broadcast", op=_SUM)
    if call.kind == "broadcast":
        return call._replace(kind="reduce")
    if call.kind == "permute":
        return call._replace(root=call.source, source=call.root)
    if call.kind == "all_gather":
        return call._replace(kind="reduce_scatter")
    if call.kind == "reduce_scatter":
        return call._replace(kind="all_gather", op=_SUM)
    return call


def _reduces(call: Call) -> bool:
    return call.kind == "reduce_parts" or (call.kind in KINDS and KINDS[call.kind].reduces > 0)


def _scans(call: Call) -> bool:
    return call.kind in KINDS and KINDS[call.kind].scans


def _from_the_last(cotangent: Any, call: Call) -> Any:
    """A scan's cotangents: their sum over the ranks from this one on, which is a scan of the ranks in reverse order."""
    group = call.group
    other = group.size - 1 - group.rank
    reverse = Call("permute", group, root=other, source=other, derived=True)
    terms = group.rank + (call.kind == "scan")
    if call.op.name == "avg":
        cotangent = cotangent * jnp.asarray(1 / terms if terms else 0.0, cotangent.dtype)
    return bind(bind(bind(cotangent, reverse), call._replace(op=_SUM, derived=True)), reverse)


def _factor(call: Call) -> float:
    """The factor of avg and premul_sum, for transposes that move data without a reduction."""
    if not _reduces(call) or call.kind == "all_reduce":
        return 1.0
    if _scans(call):
        return 1.0 if call.op.name == "avg" else call.op.factor
    return 1 / call.group.size if call.op.name == "avg" else call.op.factor


def _transpose(cotangent: Any, x: Any, *, call: Call) -> list[Any]:
    factor = _factor(call)
    cotangent = ad.instantiate_zeros(cotangent)
    if call.kind == "reduce_parts":
        back = jnp.broadcast_to(cotangent, (call.group.size, *cotangent.shape))
    elif _scans(call):
        back = _from_the_last(cotangent, call)
    else:
        back = bind(cotangent, _transposed(call))
    return [back if factor == 1.0 else back * jnp.asarray(factor, back.dtype)]


def _along_extremes(x: Any, tangent: Any, result: Any, call: Call) -> Any:
    """min and max: the tangents of the ranks that have the extreme, in equal parts, as in jnp.max."""
    total = call._replace(kind="all_reduce", op=_SUM, derived=True)
    has = (x == result).astype(tangent.dtype)
    return bind(tangent * (has / bind(has, total)), total)


def _jvp(primals: Any, tangents: Any, *, call: Call) -> tuple[Any, Any]:
    (x,), (tangent,) = primals, tangents
    result = bind(x, call)
    if isinstance(tangent, ad.Zero):
        return result, ad.Zero.from_primal_value(result)
    if _reduces(call) and call.op.name not in _LINEAR:
        if call.kind == "all_reduce" and call.op.name in ("min", "max"):
            return result, _along_extremes(x, tangent, result, call)
        raise NotImplementedError(f"{call.kind} has no derivative for op {call.op.name!r}; it has for {', '.join(_LINEAR)}"
                                  + (", min, max" if call.kind == "all_reduce" else ""))
    return result, bind(tangent, call._replace(derived=True))


def _jvp_message(primals: Any, tangents: Any, *, call: Call) -> Any:
    if isinstance(tangents[0], ad.Zero):
        result = PRIMITIVES[call.kind].bind(*primals, call=call)
        return result, [] if call.kind == "send" else ad.Zero.from_primal_value(result)
    # JAX drops what has no result from derivatives (send), and the other side would wait, or take nothing for a gradient of 0.
    raise NotImplementedError(f"{call.kind} has no derivative, because the other side's is not known here: use permute, "
                              "which has, also for one pair of ranks, or jax.lax.stop_gradient on what is sent")


for _kind, _primitive in PRIMITIVES.items():
    if _kind in ("send", "recv"):
        ad.primitive_jvps[_primitive] = _jvp_message
    elif _kind != "barrier":
        ad.primitive_jvps[_primitive] = _jvp
        ad.primitive_transposes[_primitive] = _transpose

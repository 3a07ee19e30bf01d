"""Programs for GPUs without one: lowered for CUDA by JAX, then each operation's handler is called as XLA would, over the
stand-ins for CUDA's runtime and NCCL (tests/standin). Tasks of conformance/worlds.py.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import arraycomm
import arraycomm.frameworks.jax as comm
from arraycomm._engine import ffi, lib
from arraycomm.core.gpu.runtime import runtime
from arraycomm.frameworks.jax import eager
from arraycomm.frameworks.jax.errors import check as errors_check
from arraycomm.frameworks.jax.operations import reduce_parts
from tests.present import present
from tests.standin import arrays

from ...conformance.gpu_faults import broken_group, raises, tell
from ...conformance.worlds import Context

_CALL = re.compile(r"custom_call @arraycomm_call\((.*?)\).*?call = dense<\[(.*?)\]>.*? : \((.*?)\) -> (.*)")
_FIELDS = ("number", "kind", "count", "dtype", "redop", "factor", "root", "source", "tag", "layout", "gives", "derived")


@functools.cache
def _xla() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["STANDIN_XLA"])
    library.standin_xla_call.restype = ctypes.c_char_p
    return library


def _handler(name: str) -> ctypes.c_void_p:
    return ctypes.c_void_p(int(ffi.cast("uintptr_t", ffi.addressof(lib, name))))


class Operation(NamedTuple):
    """What a compiled program for a GPU holds of it."""

    fields: dict[str, int]
    takes: bool
    gives: bool


def lowered(function: Callable[[Any], Any], x: Any) -> list[Operation]:
    text = jax.jit(function).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    return [Operation(dict(zip(_FIELDS, map(int, values.split(",")), strict=True)), "tensor" in given, "tensor" in got)
            for _, values, given, got in _CALL.findall(text)]


def call(operation: Operation, x: arrays.Array | None, y: arrays.Array | None) -> str | None:
    """XLA's call, on the stream on which the arrays are in order; the error's text."""
    values = (ctypes.c_int64 * len(_FIELDS))(*operation.fields.values())
    said: bytes | None = _xla().standin_xla_call(
        _handler("acomm_xla_enqueue"), values, ctypes.c_int64(len(_FIELDS)), x is not None,
        ctypes.c_void_p(x.address if x else None), y is not None, ctypes.c_void_p(y.address if y else None),
        ctypes.c_void_p(arrays.current_stream()))
    return None if said is None else said.decode()


def enqueued(function: Callable[[Any], Any], x: np.ndarray[Any, Any]) -> arrays.Array | str | None:
    """A program of one operation: its result, None where it has none, or the error."""
    (operation,) = lowered(function, jnp.asarray(x))
    shape = jax.eval_shape(function, jnp.asarray(x))
    result = arrays.empty(shape.shape, shape.dtype) if operation.gives else None
    return call(operation, arrays.asarray(x) if operation.takes else None, result) or result


def _contribution(rank: int) -> np.ndarray[Any, Any]:
    return (np.arange(12).reshape(6, 2) * (rank + 1) + rank).astype(np.float32)


def operations(context: Context) -> None:
    """Every operation, on the program's stream: what was enqueued before it comes before it, and the host waits for nothing."""
    group, size, rank = context.group, context.size, context.rank
    xs = [_contribution(r) for r in range(size)]
    total: np.ndarray = reduce(np.add, xs)
    part = slice(rank * (6 // size), (rank + 1) * (6 // size))
    ring = [(r, (r + 1) % size) for r in range(size)]
    cases: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "sum": (lambda x: comm.all_reduce(x, group=group), total),
        "max": (lambda x: comm.all_reduce(x, "max", group=group), np.max(xs, 0)),
        "premul_sum": (lambda x: comm.all_reduce(x, arraycomm.premul_sum(0.5), group=group), total / 2),
        "all_gather": (lambda x: comm.all_gather(x, form="stack", group=group), np.stack(xs)),
        "reduce_scatter": (lambda x: comm.reduce_scatter(x, group=group), total[part]),
        "all_to_all": (lambda x: comm.all_to_all(x, group=group), np.concatenate([x[part] for x in xs])),
        "broadcast": (lambda x: comm.broadcast(x, size - 1, group=group), xs[-1]),
        "reduce": (lambda x: comm.reduce(x, 1, group=group), total if rank == 1 else None),
        "permute": (lambda x: comm.permute(x, ring, group=group), xs[rank - 1]),
        "permute some": (lambda x: comm.permute(x, [(0, 1)], group=group), xs[0] if rank == 1 else None),
        "recv": ((lambda x: comm.recv(0, group=group, like=x)) if rank == 1 else lambda x: comm.send(x, 1, group=group), xs[0]),
        "barrier": (lambda x: comm.barrier(group=group), None),
        "empty": (lambda x: comm.all_reduce(x[:0], group=group), total[:0]),
    }
    for name, (function, want) in cases.items():
        if name == "recv" and rank > 1:
            continue
        y = _one(function, xs[rank])
        context.check(not isinstance(y, str), f"{name}: {y}")
        if isinstance(y, arrays.Array):
            context.check(np.array_equal(y.numpy(), want), f"{name}: {y.numpy()}, not {want}")
        else:
            context.check(y is not None or want is None or name == "recv" and rank == 0, f"{name} has no result")
    errors_check()


def _one(function: Callable[[Any], Any], x: np.ndarray[Any, Any]) -> arrays.Array | str | None:
    if jax.eval_shape(function, jnp.asarray(x)) is not None:
        return enqueued(function, x)
    (operation,) = lowered(function, jnp.asarray(x))  # send and barrier
    return call(operation, arrays.asarray(x) if operation.takes else None, None)


def lowerings(context: Context) -> None:
    """Of two ranks. What XLA is told: zeros are its own, parts are reduced by it, gradients and control flow go too."""
    group, x = context.group, jnp.ones((6, 2))
    context.check(lowered(lambda x: comm.permute(x, [], group=group), x)[0].gives is False, "a result that nobody writes")
    for op in ("sum", "avg", "product", "min", "premul_sum", "bor"):
        parts = jnp.asarray(np.arange(8).reshape(2, 4), jnp.int32 if op == "bor" else jnp.bfloat16)
        reduction = arraycomm.premul_sum(2.0) if op == "premul_sum" else arraycomm.core.arrays.types.OPS[op]

        def reduced(x: Any) -> Any:
            return reduce_parts(x, reduction, group=group)  # noqa: B023

        context.check(not lowered(reduced, parts), f"{op} of parts is XLA's")
        own = eager.reduce_in_order(parts, call=eager.Call("reduce_parts", group, reduction))
        want = comm.jit(reduced)(parts)
        context.check(np.array_equal(own, want) and own.dtype == want.dtype, f"{op} of parts: {own}, not {want}")
    found = lowered(jax.grad(lambda x: comm.all_gather(jnp.sin(comm.all_reduce(x, group=group)), group=group).sum()), x)
    kinds = [operation.fields["kind"] for operation in found]
    context.check(kinds.count(lib.ACOMM_ALL_REDUCE) == 2 and lib.ACOMM_REDUCE_SCATTER in kinds, f"gradient: {kinds}")
    looped = lowered(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: comm.broadcast(x, group=group), x), x)
    context.check(len(looped) == 1, f"a loop: {looped}")
    context.check(_xla().standin_xla_version(_handler("acomm_xla_enqueue")) >= 1, "the version")


def not_waited_for(context: Context) -> None:
    """The call returns while the operation is under way on the device."""
    stream = arrays.current_stream()
    tell("slow", ctypes.c_long(300_000_000))
    context.group.barrier()
    y = enqueued(lambda x: comm.all_reduce(x, group=context.group), np.ones(8, np.float32))
    cuda = runtime()
    event = cuda.event(0)
    cuda.record(event, stream)
    context.check(not cuda.came(event), "the host waited")
    context.check(isinstance(y, arrays.Array) and bool((y.numpy() == context.size).all()), "a slow operation")
    cuda.destroy_event(event)
    tell("slow", ctypes.c_long(0))


def faults(context: Context) -> None:
    """A call of NCCL that fails, a peer that ends what is under way, messages that NCCL has not, a closed group."""
    one = np.ones(8, np.float32)
    with broken_group(context) as group:
        if context.rank == 0:
            tell("fail", b"ncclAllReduce", 1, 2)
            said = str(enqueued(lambda x: comm.all_reduce(x, group=group), one))
            context.check(all(word in said for word in ("DistBackendError", "rank 0 of", "all_reduce failed")), said)
    with broken_group(context) as group:
        if context.rank == 0:
            y = enqueued(lambda x: comm.all_reduce(x, group=group), one)  # nobody else comes
            context.group.barrier()
            context.check(isinstance(y, arrays.Array), f"{y}")
            arrays.cuda().call("cudaStreamSynchronize", arrays.current_stream())
            raises(context, "what was under way", errors_check, (arraycomm.Aborted, arraycomm.PeerLost), "of the test")
            errors_check()  # once
        else:
            context.group.barrier()  # until it is under way there
            group.abort("of the test")
    said = str(enqueued(lambda x: comm.recv(0, tag=7, group=context.group, like=x), one))
    context.check("ValueError" in said and "no tags" in said, said)
    group = present(context.group.split(0))
    operation, = lowered(lambda x: comm.all_reduce(x, group=group), jnp.asarray(one))
    group.close()
    said = str(call(operation, arrays.asarray(one), arrays.asarray(one)))
    context.check("Aborted" in said and "the group is closed" in said, said)
    stranger = Operation({**operation.fields, "number": 10**6}, True, True)
    context.check("none of this process" in str(call(stranger, arrays.asarray(one), arrays.asarray(one))), "a stranger's group")

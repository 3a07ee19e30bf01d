"""Reductions of arrays of one process, by the engine's kernels: bit-identical to those between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from arraycomm._engine import ffi, lib

from ..arrays.buffer import Buffer
from ..arrays.types import DType, ReduceOp
from . import arguments


def reduce_into(out: Buffer, inputs: Sequence[Buffer], op: str | ReduceOp = "sum") -> None:
    """The elementwise reduction of all inputs, in their order, written to `out`, which may be the first of them.

    Host memory of one dtype and element count. Raises ValueError where they differ, TypeError where op is not defined.
    """
    for buffer in inputs:
        if (buffer.dtype, buffer.count) != (out.dtype, out.count):
            raise ValueError(f"arrays that are reduced must agree: {buffer.count} elements of {DType(buffer.dtype).label}, and "
                             f"{out.count} of {DType(out.dtype).label}")
    reduction = arguments.reduction(op, out.dtype)
    addresses = ffi.new("uintptr_t[]", [buffer.address for buffer in inputs])
    lib.acomm_reduce_local(out.address, addresses, len(inputs), out.count, out.dtype, reduction.code, reduction.factor)

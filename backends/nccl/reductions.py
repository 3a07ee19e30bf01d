"""The reductions that NCCL has, and the mapping of ours to its types and operations."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from arraycomm.core.arrays.types import DType, ReduceOp

from .declarations import CONSTANTS

if TYPE_CHECKING:
    from .library import Library

_SUM, _PROD, _MAX, _MIN, _AVG = (CONSTANTS[name][0] for name in ("ncclSum", "ncclProd", "ncclMax", "ncclMin", "ncclAvg"))
UINT8 = CONSTANTS["ncclUint8"][0]  # pure data movement uses bytes

# dtype -> NCCL's type, the number of these per element, and the first version that has it.
_TYPES = {
    dtype: (CONSTANTS[name][0], elements, CONSTANTS[name][1])
    for dtype, name, elements in (
        (DType.BOOL, "ncclUint8", 1), (DType.INT8, "ncclInt8", 1), (DType.UINT8, "ncclUint8", 1),
        (DType.INT32, "ncclInt32", 1), (DType.UINT32, "ncclUint32", 1), (DType.INT64, "ncclInt64", 1),
        (DType.UINT64, "ncclUint64", 1), (DType.FLOAT16, "ncclFloat16", 1), (DType.BFLOAT16, "ncclBfloat16", 1),
        (DType.FLOAT32, "ncclFloat32", 1), (DType.FLOAT64, "ncclFloat64", 1), (DType.COMPLEX64, "ncclFloat32", 2),
        (DType.COMPLEX128, "ncclFloat64", 2), (DType.FLOAT8_E4M3FN, "ncclFloat8e4m3", 1),
        (DType.FLOAT8_E5M2, "ncclFloat8e5m2", 1),
    )
}
_OPS = {"sum": _SUM, "product": _PROD, "max": _MAX, "min": _MIN, "avg": _AVG}
# bool as bytes of 0 and 1. There is no operation for bxor.
_BOOL = {"sum": _MAX, "max": _MAX, "bor": _MAX, "product": _MIN, "min": _MIN, "band": _MIN}
_COMPLEX = frozenset((DType.COMPLEX64, DType.COMPLEX128))
_PARTWISE = frozenset(("sum", "avg", "premul_sum"))  # applied to real and imaginary parts
_SCALARS = {DType.FLOAT16: "<e", DType.FLOAT32: "<f", DType.FLOAT64: "<d", DType.COMPLEX64: "<f", DType.COMPLEX128: "<d"}


class Native(NamedTuple):
    """A reduction in NCCL's terms: type, number of these per element, operation, or premul_sum's factor as bytes of that
    type."""

    dtype: int
    elements: int
    op: int
    scalar: bytes = b""


def native(nccl: Library, op: ReduceOp, dtype: int, *, alone: bool = False) -> Native | None:
    """None if this version of NCCL lacks it: 16-bit integers, bitwise operations, products of complex numbers, most kinds
    of float8. alone: a single rank, whose mean is its input; NCCL would multiply (see Grouped.scaled_alone)."""
    found = _TYPES.get(DType(dtype))
    if found is None or nccl.version < found[2]:
        return None
    kind, elements, _ = found
    if op.name == "premul_sum":
        scalar = _scalar(op.factor, DType(dtype))
        return None if scalar is None else Native(kind, elements, -1, scalar)
    if dtype in _COMPLEX and op.name not in _PARTWISE:
        return None
    code = (_BOOL if dtype == DType.BOOL else _OPS).get(op.name)
    if alone and code == _AVG:
        code = _SUM
    return None if code is None else Native(kind, elements, code)


def _scalar(factor: float, dtype: DType) -> bytes | None:
    """premul_sum's factor as bytes of the type; None if the type cannot represent it."""
    if dtype in _SCALARS:
        try:
            return struct.pack(_SCALARS[dtype], factor)
        except OverflowError:
            return None
    if dtype is DType.BFLOAT16:
        return _bfloat16(factor)
    if DType.INT8 <= dtype <= DType.UINT64 and factor.is_integer() and abs(factor) < 2**53:
        return (int(factor) % 2 ** (8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little")  # type: ignore[no-any-return]
    return None


def _bfloat16(factor: float) -> bytes | None:
    """None if bfloat16 would round the factor: with 8 bits of precision the error is too large."""
    bits: bytes = struct.pack("<f", factor)
    return bits[2:] if bits[:2] == b"\0\0" and struct.unpack("<f", bits)[0] == factor else None

"""compressed_all_reduce: float32 sums that travel as bfloat16, float8 or int8, where that loss of precision is asked for.

It works in NumPy, on host arrays of any library; bfloat16 and float8 are ml_dtypes'.

| scheme | bytes an element | a rank's rounding of x, per element |
|---|---|---|
| "bfloat16" | 2 | at most 2**-8 |x| |
| "float8" | 1, and 4 a block | at most 2**-4 |x|, or 2**-18 of the largest |x| of the block where that is more |
| "int8" | 1, and 4 a block | at most 2**-7.9 of the largest |x| of the block |

Each rank's values are rounded once before they are added, in float32 and rank order, and the sum once more, so the result is
off by at most the sum of those roundings (or by 1e-35 a rank, where that is more: what is so small may become 0). Its bits are
the same on all ranks. A block in which a value or a sum is not finite is NaN in the result. "bfloat16" does there as
all_reduce; what is above its largest value, 3.39e38, becomes infinite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arraycomm.core.arrays.dlpack import pack, resolve, wrap
from arraycomm.core.arrays.types import DeviceType, DType
from arraycomm.core.base.digest import sha256
from arraycomm.core.group import arguments
from arraycomm.core.group.exchange import mismatch
from arraycomm.core.group.group import Group

SCHEMES = ("bfloat16", "float8", "int8")
_FLOAT32 = np.dtype(np.float32)
_BLOCK = 256
_TOLD = 8  # bytes behind each row that tell what was called


def compressed_all_reduce(group: Group, x: Any, scheme: str, *, op: str = "sum", block: int = _BLOCK) -> Any:
    """The sum ("sum") or mean ("avg") of every rank's x, on every rank, as a new array of x's library; any shape.

    block: values that share a scale; equal on all ranks, as everything else. Raises TypeError for what is not float32,
    ValueError for another scheme or op, and what all_reduce raises: CollectiveMismatch when ranks differ.
    """
    arguments.integer("block", block)
    if scheme not in SCHEMES or op not in ("sum", "avg") or block < 1:
        raise ValueError(f"scheme is one of {', '.join(SCHEMES)}, op sum or avg and block at least 1; got {scheme!r}, {op!r}, "
                         f"{block}")
    buffer = resolve(x)
    if buffer.dtype != DType.FLOAT32 or buffer.device_type != DeviceType.CPU:
        raise TypeError(f"compressed_all_reduce takes float32 in host memory, got {DType(buffer.dtype).label} on "
                        f"{DeviceType(buffer.device_type).name}")
    values = np.frombuffer(memoryview(buffer), _FLOAT32)
    block = min(block, max(len(values), _BLOCK))  # a longer one would only be padded
    if scheme == "bfloat16":
        import ml_dtypes

        total = group.all_reduce(values.astype(ml_dtypes.bfloat16), op=op).astype(_FLOAT32)
    else:
        told = sha256(f"{len(values)} {scheme} {op} {block}".encode()).digest()[:_TOLD]
        total = _in_blocks(group, values, _Coding(scheme, block), op, told)
    return wrap(pack(total.reshape(buffer.shape)), x)


def _in_blocks(group: Group, values: Any, coding: _Coding, op: str, told: bytes) -> Any:
    """Each rank adds one part of everybody's values. told: equal on ranks that call the same."""
    length = -(-len(values) // (group.size * coding.block)) * coding.block
    padded = np.zeros((group.size, length), _FLOAT32)
    padded.reshape(-1)[: len(values)] = values
    came = group.all_to_all(coding.encode(padded, told))
    calls = came[:, -_TOLD:]  # all ranks have the same before them, and raise alike
    odd = [rank for rank in range(group.size) if (calls[rank] != calls[0]).any()]
    if odd:
        raise mismatch(group, odd, f"compressed_all_reduce: rank {odd[0]} gave another number of values, scheme, op or block "
                       "than rank 0")
    mine = coding.decode(came)
    with np.errstate(invalid="ignore", over="ignore"):
        total = mine[0]
        for others in mine[1:]:
            total = total + others
        if op == "avg":
            total = total / np.float32(group.size)
    return coding.decode(group.all_gather(coding.encode(total[None, :], told))).reshape(-1)[: len(values)]


class _Coding:
    """Rows of float32 as rows of bytes: a code of one byte for each value, a scale for each block, and what was called."""

    def __init__(self, scheme: str, block: int) -> None:
        self.block = block
        if scheme == "int8":
            self.dtype, self.largest = np.dtype(np.int8), 127.0
        else:
            import ml_dtypes

            self.dtype = np.dtype(ml_dtypes.float8_e4m3fn)
            self.largest = float(ml_dtypes.finfo(self.dtype).max)
        # Of scales: the largest code times a scale that was rounded up could be infinite.
        self.limit = np.nextafter(np.float32(np.finfo(np.float32).max / self.largest), np.float32(0))

    def encode(self, rows: Any, told: bytes) -> Any:
        blocks = rows.reshape(len(rows), -1, self.block)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            scales = (np.abs(blocks).max(axis=2) / self.largest).astype(_FLOAT32)
            scales[~np.isfinite(scales)] = np.nan
            scales = np.minimum(scales, self.limit)
            scaled = np.nan_to_num(blocks / np.where(scales == 0, 1, scales)[:, :, None])
        codes = (np.rint(scaled) if self.dtype.kind == "i" else scaled).clip(-self.largest, self.largest).astype(self.dtype)
        told_rows = np.tile(np.frombuffer(told, np.uint8), (len(rows), 1))
        return np.concatenate([codes.reshape(len(rows), -1).view(np.uint8), scales.view(np.uint8), told_rows], axis=1)

    def decode(self, rows: Any) -> Any:
        count = (rows.shape[1] - _TOLD) * self.block // (self.block + 4)
        codes = np.ascontiguousarray(rows[:, :count]).view(self.dtype).astype(_FLOAT32)
        scales = np.ascontiguousarray(rows[:, count:-_TOLD]).view(_FLOAT32)
        return (codes.reshape(len(rows), -1, self.block) * scales[:, :, None]).reshape(len(rows), -1)

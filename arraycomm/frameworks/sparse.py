"""sparse_all_reduce: the sum of arrays of which each rank has some rows only, given as their indices and values.

It works in NumPy, on host arrays of any library (bfloat16 needs ml_dtypes). Every rank gathers all ranks' entries and adds them
itself: what travels is the sum of what the ranks give, so where most rows are there, all_reduce of the dense array is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from arraycomm.core.arrays.arrays import numpy_dtype
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.codec import as_bytes
from arraycomm.core.arrays.dlpack import pack, resolve, wrap
from arraycomm.core.arrays.types import DeviceType, DType
from arraycomm.core.base.digest import sha256
from arraycomm.core.group import arguments
from arraycomm.core.group.exchange import gather_integers, mismatch
from arraycomm.core.group.group import Group

_REFUSED = -1  # in the place of a number of entries


def sparse_all_reduce(group: Group, indices: Any, values: Any, shape: int | Sequence[int], *, op: str = "sum") -> tuple[Any, Any]:
    """The sum ("sum") or mean ("avg") over the ranks of a sparse array, on every rank: (indices, values).

    shape: the lengths of the dimensions that the indices address; an int where it is one. Equal on all ranks.
    indices: integers, (n,) where shape is an int, otherwise (len(shape), n), as torch's sparse tensors have them. n is each
    rank's own and may be 0; any order, and what stands there more than once is added up.
    values: (n, *rest): integers, float16, bfloat16, float32, float64 or complex; dtype and rest are equal on all ranks.

    The result has each index that any rank named once, in rising order (of the last dimension fastest), also where the values
    add up to 0. Its indices are of the dtype and library of `indices`, its values of those of `values`. Its bits are the
    same on all ranks: a rank's values of one index are added in their order, then the ranks' sums in rank order; float16
    and bfloat16 in float32, rounded once after each of the two. What a rank did not name counts as zeros, "avg" divides by
    the group's size (integers toward zero).

    Raises TypeError for other dtypes and devices and ValueError for other shapes, before anything is sent. An index
    out of range is a ValueError on its rank and, as arguments that differ between ranks, a CollectiveMismatch on all others:
    the group stays usable.
    """
    lengths = arguments.lengths(shape)
    where, found = resolve(indices), resolve(values)
    linear = not isinstance(shape, Iterable)
    _check(where, found, lengths, linear, op)
    numbers, fault = _flat(_array(where), lengths)
    entries = _array(found).reshape(where.shape[-1], math.prod(found.shape[1:]))
    told = sha256(f"{lengths} {found.shape[1:]} {int(found.dtype)} {op}".encode()).digest()[:7]
    if fault is None:
        numbers, entries = _added_up(numbers, entries)
    counts = _agree(group, int.from_bytes(told, "big"), len(numbers) if fault is None else _REFUSED, fault)
    every_number = group.all_gather(numbers, counts=counts)
    every_entry = group.all_gather(entries, counts=counts)
    union, total = _reduced(every_number, every_entry, counts, op)
    places = union if linear else np.stack(np.unravel_index(union, lengths))
    return (wrap(pack(places.astype(numpy_dtype(DType(where.dtype).label))), indices),
            wrap(pack(total.reshape(len(union), *found.shape[1:])), values))


def _check(where: Buffer, found: Buffer, lengths: Sequence[int], plain: bool, op: str) -> None:
    for name, buffer in (("indices", where), ("values", found)):
        if buffer.device_type != DeviceType.CPU:
            raise TypeError("sparse_all_reduce takes arrays in host memory, and these are on a device: " + name)
    if not DType.INT8 <= where.dtype <= DType.UINT64:
        raise TypeError(f"indices are integers, got {DType(where.dtype).label}")
    if not DType.INT8 <= found.dtype <= DType.COMPLEX128:
        raise TypeError(f"sparse_all_reduce has no sum of {DType(found.dtype).label}: values are integers, float16, bfloat16, "
                        "float32, float64 or complex")
    if op not in ("sum", "avg"):
        raise ValueError(f"op is sum or avg, got {op!r}")
    if not lengths:
        raise ValueError("shape needs at least one dimension: indices have nothing to address")
    rows = () if plain else (len(lengths),)
    if len(where.shape) != len(rows) + 1 or where.shape[:-1] != rows or found.shape[:1] != where.shape[-1:]:
        raise ValueError(f"indices of shape {where.shape} and values of shape {found.shape} do not belong to shape "
                         f"{lengths}: indices are {'(n,)' if plain else f'({len(lengths)}, n)'}, values (n, ...)")
    if math.prod(lengths) >= 2**63 or max(lengths, default=0) > np.iinfo(numpy_dtype(DType(where.dtype).label)).max + 1:
        raise ValueError(f"shape {lengths} is more than {DType(where.dtype).label} indices, or 2^63 elements, reach")


def _array(buffer: Buffer) -> Any:
    return np.frombuffer(memoryview(as_bytes(buffer)), numpy_dtype(DType(buffer.dtype).label)).reshape(buffer.shape)


def _flat(where: Any, lengths: Sequence[int]) -> tuple[Any, str | None]:
    """Each entry's number in C order; or what is wrong with one."""
    rows = where.reshape(len(lengths), -1)
    for dimension, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        wrong = np.flatnonzero((row < 0) | (row >= length))
        if len(wrong):
            place = wrong[0]
            return where, f"index {row[place]} at place {place} is out of range for dimension {dimension} of length {length}"
    return np.ravel_multi_index(tuple(rows.astype(np.int64)), tuple(lengths)).astype(np.int64), None


def _agree(group: Group, told: int, count: int, fault: str | None) -> list[int]:
    """All ranks' numbers of entries. All see the same and raise alike."""
    answers = gather_integers(group._communicator, [told, count], None)
    if fault is not None:
        raise ValueError(f"sparse_all_reduce: {fault}")
    wrong = tuple(rank for rank, (_, theirs) in enumerate(answers) if theirs == _REFUSED)
    if wrong:
        raise mismatch(group, wrong, f"sparse_all_reduce: rank {wrong[0]} gave an index that is out of range")
    odd = tuple(rank for rank, (theirs, _) in enumerate(answers) if theirs != answers[0][0])
    if odd:
        raise mismatch(group, odd, f"sparse_all_reduce: rank {odd[0]} gave another shape, dtype or op than rank 0")
    return [theirs for _, theirs in answers]


def _wide(dtype: Any) -> Any:
    """What its values are added in."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype


def _added_up(numbers: Any, entries: Any) -> tuple[Any, Any]:
    """Each number once, rising."""
    union, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    if len(union) == len(numbers):
        return union, entries[first]
    total = np.zeros((len(union), entries.shape[1]), _wide(entries.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(total, place, entries.astype(total.dtype))  # one after the other
        return union, total.astype(entries.dtype)


def _reduced(numbers: Any, entries: Any, counts: Sequence[int], op: str) -> tuple[Any, Any]:
    union = np.unique(numbers)
    total = np.zeros((len(union), entries.shape[1]), _wide(entries.dtype))
    end = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for count in counts:  # in rank order; a rank has no number twice
            start, end = end, end + count
            total[np.searchsorted(union, numbers[start:end])] += entries[start:end].astype(total.dtype)
        if op == "avg":
            total = _divided(total, len(counts))
        return union, total.astype(entries.dtype)


def _divided(total: Any, size: int) -> Any:
    """As all_reduce's avg does."""
    if total.dtype.kind == "c":  # part by part
        return _divided(total.view(total.real.dtype), size).view(total.dtype)
    if total.dtype.kind not in "iu":
        return total / total.dtype.type(size)
    wide = total.astype(np.int64 if total.dtype.kind == "i" else np.uint64)
    return (wide // size + ((wide < 0) & (wide % size != 0))).astype(total.dtype)

"""The ranks' inputs, and the expected results.

Inputs are small whole numbers that depend on rank and index, chosen so that every reduction over all ranks, and every
partial one, is exact in its dtype: results are compared without a tolerance. They repeat with a prime period, so that a
misplaced chunk is detected, and so that the reference of a large array is one period.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
PERIOD = 1021
PREMUL_FACTOR = 2.0
_BLOCK = PERIOD << 10  # elements compared at once, to bound the temporary
_LARGEST = 100  # keeps int8 sums of positive or negative values in range
_NARROW = ("bfloat16", "float8")
_SUMS = ("sum", "avg", "premul_sum")
POISON = 1  # byte; no dtype reads a run of it as a whole number above 1

# nccl-tests' name of a reduction -> core's.
OPS = {
    "sum": "sum", "prod": "product", "max": "max", "min": "min", "avg": "avg", "mulsum": "premul_sum",
    "band": "band", "bor": "bor", "bxor": "bxor", "product": "product", "premul_sum": "premul_sum",
}

_UFUNCS = {
    "sum": np.add, "avg": np.add, "premul_sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}

# Whole numbers up to this are exact in the dtype.
_EXACT = {
    "bool": 1, "int8": 127, "int16": 1 << 15, "int32": 1 << 31, "int64": 1 << 53,
    "uint8": 255, "uint16": 1 << 16, "uint32": 1 << 32, "uint64": 1 << 53,
    "float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24, "float64": 1 << 53,
    "complex64": 1 << 23, "complex128": 1 << 52,
    "float8_e3m4": 15, "float8_e4m3": 16, "float8_e4m3b11fnuz": 16, "float8_e4m3fn": 16, "float8_e4m3fnuz": 16,
    "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 1,
}
DTYPES = tuple(_EXACT)

# nccl-tests' spelling -> arraycomm's.
SHORT_NAMES = {
    "char": "int8", "int": "int32", "half": "float16", "float": "float32", "double": "float64",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}
_LABELS = {ours: theirs for theirs, ours in SHORT_NAMES.items() if ours not in ("int8", "int32")}


class Source(NamedTuple):
    """The origin of a run of result elements: input elements [start, start + length), reduced over `ranks`; without ranks the
    result is an identity, and only the number of elements is checked."""

    ranks: tuple[int, ...]
    start: int
    length: int


def label(dtype: str) -> str:
    """The dtype as nccl-tests prints it."""
    return _LABELS.get(dtype, dtype)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; the narrow floats are ml_dtypes'. ModuleNotFoundError says what to install."""
    if dtype.startswith(_NARROW):
        try:
            import ml_dtypes
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{dtype} needs ml_dtypes in NumPy: pip install ml_dtypes") from error
        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype))
        return narrow
    return np.dtype(dtype)


def why_not(dtype: str, op: str) -> str | None:
    """None where the reduction is defined for the dtype, otherwise the reason."""
    whole = dtype.startswith(("int", "uint"))
    if op in ("band", "bor", "bxor") and not (whole or dtype == "bool"):
        return f"{op} is defined for bool and integers only"
    if op in ("min", "max") and dtype.startswith("complex"):
        return f"{op} needs an order, which complex numbers lack"
    if op in ("avg", "premul_sum") and dtype == "bool":
        return f"{op} is not defined for bool"
    if dtype == "float8_e8m0fnu" and op not in ("min", "max", "product"):
        return f"{op} is rarely exact where there are powers of two only"
    return None


def values(dtype: str, op: str, rank: int, size: int, start: int, count: int) -> Array:
    """`count` elements of a rank's input, from element `start`. op is "" where nothing is reduced."""
    return np.resize(np.roll(_cast(_numbers(dtype, op, rank, size), dtype), -(start % PERIOD)), count)


def expected(dtype: str, op: str, source: Source, size: int) -> Array:
    """One period of the expected elements of a source, beginning at its start."""
    inputs = [_numbers(dtype, op, rank, size) for rank in source.ranks]
    reduced = _reduce(op, inputs) if len(inputs) > 1 or op == "premul_sum" else inputs[0]
    return np.roll(_cast(reduced, dtype), -(source.start % PERIOD))


def poison(count: int, dtype: str) -> Array:
    """An output buffer in which no element is correct by accident."""
    made = np.empty(count, numpy_dtype(dtype))
    made.view(np.uint8).fill(POISON)
    return made


def count_wrong(result: Array, sources: Sequence[Source], dtype: str, op: str, size: int) -> int:
    """The number of elements that differ from the expected ones, plus missing or surplus elements."""
    flat = result.reshape(-1)
    wrong = abs(len(flat) - sum(source.length for source in sources))
    if flat.dtype != numpy_dtype(dtype):
        return max(wrong, len(flat), 1)
    position = 0
    for source in sources:
        if source.ranks:
            wrong += _compare(flat[position : position + source.length], expected(dtype, op, source, size))
        position += source.length
    return wrong


def _compare(run: Array, period: Array) -> int:
    whole = len(run) // PERIOD * PERIOD
    wrong = 0
    for low in range(0, whole, _BLOCK):
        block = run[low : min(low + _BLOCK, whole)]
        wrong += int(np.count_nonzero(block.reshape(-1, PERIOD) != period))
    return wrong + int(np.count_nonzero(run[whole:] != period[: len(run) - whole]))


@lru_cache(maxsize=64)
def _numbers(dtype: str, op: str, rank: int, size: int) -> Array:
    """One period of a rank's input as int64 (complex128 for complex dtypes)."""
    index = np.arange(PERIOD)
    if op == "product":
        numbers = _few_twos(index, rank, size)
    elif dtype == "float8_e8m0fnu":
        numbers = 1 << (index + rank) % 4
    elif op == "avg":
        numbers = _paired(index, rank, size, _limit(dtype, size))
    elif op in _SUMS and _limit(dtype, size) == 0:
        # More ranks than the sum can represent: only as many ranks as it can represent have ones (half, for premul_sum's factor).
        numbers = ((index + rank) % size < max(1, min(_LARGEST, _EXACT[dtype] // 2))).astype(np.int64)
    else:
        numbers = _spread(dtype, index, rank, _limit(dtype, size if op in _SUMS else 1))
    return numbers * (1 + 2j) if dtype.startswith("complex") and op != "product" else numbers


def _limit(dtype: str, size: int) -> int:
    """The largest magnitude of which `size` summands stay exact, premul_sum's factor included; 0: too many ranks."""
    return min(_LARGEST, _EXACT[dtype] // 2) // size


def _few_twos(index: Array, rank: int, size: int) -> Array:
    # At most three ranks give a 2, so that the product is at most 8: float8_e3m4 ends below 16.
    stride = max(1, -(-size // 3))
    return np.where((index + rank) % stride == 0, 1 + (index + rank // stride) % 2, 1)


def _paired(index: Array, rank: int, size: int, limit: int) -> Array:
    # Neighbours deviate by +1 and -1: the mean is the common part, whole, while the inputs differ.
    alone = rank == size - 1 and size % 2
    deviation = 0 if alone else 1 if rank % 2 == 0 else -1
    return np.asarray(1 + deviation + index % max(limit - 1, 1))


def _spread(dtype: str, index: Array, rank: int, limit: int) -> Array:
    # Not linear in the index: another rank's input must not equal a shifted chunk of this rank's input.
    numbers = (index + index // 11 + rank) % (max(limit, 1) + 1)
    return np.asarray(numbers if dtype.startswith("uint") or limit < 2 else numbers - limit // 2)


def _reduce(op: str, inputs: list[Array]) -> Array:
    reduced = np.asarray(_UFUNCS[op].reduce(np.stack(inputs)))
    if op == "avg":
        return np.asarray(reduced / len(inputs))
    return reduced * PREMUL_FACTOR if op == "premul_sum" else reduced


def _cast(numbers: Array, dtype: str) -> Array:
    # Through float32: not every narrow float of ml_dtypes has a cast from int64.
    narrow = dtype.startswith(_NARROW)
    return (numbers.astype(np.float32) if narrow else numbers).astype(numpy_dtype(dtype))

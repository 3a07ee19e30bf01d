"""What the tests of array exchange share: the dtypes, arrays of them, and their bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from arraycomm.core.arrays.types import DType

DTYPES = list(DType)
SUPPORTED = "supported are bool, int8, .*float8_e8m0fnu"


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype.label, dtype.label))


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def sample(dtype: DType, shape: tuple[int, ...] = (2, 3)) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(numpy_dtype(dtype))

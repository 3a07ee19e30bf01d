"""Libraries beside the frameworks, for `--frameworks`: from NumPy's arrays to theirs, and back."""

from __future__ import annotations

import importlib
from typing import Any

import ml_dtypes
import numpy as np

from arraycomm.core.arrays.types import DType

_NARROW = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"}
DTYPES = {
    "array_api_strict": _NARROW | {"complex64", "complex128"},
    "mlx": _NARROW | {"float16", "bfloat16", "complex64"},
    "pyarrow": _NARROW - {"bool"} | {"float16"},  # its tensors
    "tvm_ffi": {dtype.label for dtype in DType if np.dtype(getattr(ml_dtypes, dtype.label, dtype.label)).isbuiltin == 1},
}


def make(library: str, array: np.ndarray[Any, Any]) -> Any:
    if library == "mlx":
        import mlx.core as mx

        if array.dtype.name == "bfloat16":
            return mx.view(mx.array(array.view(np.uint16)), mx.bfloat16)
        return mx.array(array, dtype=mx.float64) if array.dtype == np.float64 else mx.array(array)
    if library == "pyarrow":
        import pyarrow

        return pyarrow.Tensor.from_numpy(array.copy())
    given: Any = importlib.import_module(library)
    return given.from_dlpack(array.copy()) if library == "tvm_ffi" else given.asarray(array.copy())


def back(library: str, array: Any) -> np.ndarray[Any, Any]:
    if library == "mlx":
        import mlx.core as mx

        if array.dtype == mx.bfloat16:
            return np.array(mx.view(array, mx.uint16)).view(ml_dtypes.bfloat16)
        return np.array(array)
    if library == "pyarrow":
        return np.asarray(array.to_numpy() if hasattr(array, "to_numpy") else array)
    return np.from_dlpack(array)


def library_of(array: Any) -> str:
    """"" for others'. What comes of PyArrow's tensors are memoryviews, as it has no from_dlpack()."""
    if isinstance(array, memoryview):
        return "pyarrow"
    name = type(array).__module__.split(".")[0]
    return name if name in DTYPES else ""

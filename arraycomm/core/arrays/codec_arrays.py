"""NumPy's, torch's and JAX's arrays, scalars and dtypes in plain data, and back; for the rows of codec_types.py."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

from . import codec, opaque
from .codec import KNOWN, as_bytes, derives_from, typed
from .dlpack import allocate, wrap
from .types import DeviceType, DType

_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d{1,10}(\[\d{0,9}[A-Za-zμ]{1,3}(/\d{1,9})?\])?")  # NumPy's dtype.str without objects


def plain_dtype(dtype: Any) -> Any:
    """A NumPy dtype as plain data. TypeError if its elements contain references."""
    numpy = sys.modules["numpy"]
    if dtype.subdtype is not None:
        return [plain_dtype(dtype.subdtype[0]), list(dtype.subdtype[1])]
    if dtype.type.__module__ == "ml_dtypes":
        return f"ml_dtypes.{dtype.name}"
    if dtype.names is not None and dtype.type is numpy.void:
        fields = [[name, *dtype.fields[name][1:], plain_dtype(dtype.fields[name][0])] for name in dtype.names]
        return {"fields": fields, "itemsize": dtype.itemsize, "align": dtype.isalignedstruct}
    if dtype.names is None and dtype.type is not numpy.record and _DTYPE.fullmatch(dtype.str):
        return dtype.str
    raise TypeError(f"the dtype {dtype!r} of NumPy cannot be sent without pickle; what can: {KNOWN}")


def dtype_of(spec: Any) -> Any:
    numpy = sys.modules["numpy"]
    if type(spec) is list:
        base, shape = spec
        return numpy.dtype((dtype_of(base), tuple(typed(int, length) for length in shape)))
    if type(spec) is dict:
        fields = [(typed(str, name), typed(int, offset), [typed(str, one) for one in title], dtype_of(inner))
                  for name, offset, *title, inner in spec["fields"]]
        described = {"names": [field[0] for field in fields], "offsets": [field[1] for field in fields],
                     "formats": [field[3] for field in fields], "itemsize": typed(int, spec["itemsize"])}
        if any(field[2] for field in fields):
            described["titles"] = [field[2][0] if field[2] else None for field in fields]
        return numpy.dtype(described, align=typed(bool, spec["align"]))
    if typed(str, spec).startswith("ml_dtypes."):
        library = sys.modules.get("ml_dtypes")
        if library is None:
            raise ImportError("a dtype of ml_dtypes arrived, which this process has not imported: import ml_dtypes before")
        kind = vars(library)[spec.removeprefix("ml_dtypes.")]
        if not (isinstance(kind, type) and issubclass(kind, numpy.generic)):
            raise ValueError(f"{spec} is no dtype")
        return numpy.dtype(kind)
    if not _DTYPE.fullmatch(spec):
        raise ValueError(f"{spec!r} is no dtype")
    return numpy.dtype(spec)


def in_pieces(data: memoryview) -> list[memoryview]:
    return [data[start : start + codec.PIECE] for start in range(0, len(data), codec.PIECE)]


def bytes_of(*pieces: Any) -> bytes:
    return b"".join([typed(bytes, piece) for piece in pieces])


def _fill(memory: memoryview, pieces: tuple[Any, ...]) -> None:
    start = 0
    for piece in pieces:
        memory[start : start + len(piece)] = piece
        start += len(piece)


def _check_length(shape: Any, itemsize: int, pieces: tuple[Any, ...]) -> None:
    if len(typed(list, shape)) > 64 or any(typed(int, length) < 0 for length in shape) \
            or math.prod(shape) * itemsize != sum(len(typed(bytes, piece)) for piece in pieces):
        raise ValueError(f"an array of shape {shape} and {itemsize} bytes an element that has another length")


def array_parts(obj: Any) -> list[Any]:
    numpy = sys.modules["numpy"]
    array = numpy.asarray(obj)
    if not array.dtype.itemsize:
        raise TypeError(f"an array of NumPy's dtype {array.dtype!r}, which has no bytes, cannot be sent without pickle")
    dtype = plain_dtype(array.dtype)  # raises for references
    return [dtype, list(array.shape), *in_pieces(memoryview(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)))]


def numpy_of(spec: Any, shape: Any, *pieces: Any) -> Any:
    numpy, dtype = sys.modules["numpy"], dtype_of(spec)
    _check_length(shape, dtype.itemsize, pieces)
    if not dtype.itemsize or dtype.subdtype is not None:
        raise ValueError(f"an array of dtype {dtype!r}")
    found = numpy.empty(tuple(shape), dtype)
    if found.nbytes:
        _fill(memoryview(found.reshape(-1).view(numpy.uint8)), pieces)
    return found


def is_numpy_scalar(obj: Any) -> bool:
    numpy = sys.modules["numpy"]
    return derives_from("numpy.generic")(obj) and type(obj) is obj.dtype.type and type(obj) not in (numpy.object_, numpy.record)


def host(obj: Any) -> list[Any]:
    buffer = opaque.readable(obj)
    if buffer.device_type != DeviceType.CPU:
        raise TypeError("an object may hold arrays in host memory only; copy this one to the CPU first")
    return [opaque.dtype_name(buffer), list(buffer.shape), *in_pieces(memoryview(as_bytes(buffer)))]


def _host_of(label: str, shape: Any, pieces: tuple[Any, ...], template: Any) -> Any:
    if typed(str, label).upper() in DType.__members__:
        dtype = DType[label.upper()]
        _check_length(shape, dtype.itemsize, pieces)
        buffer = allocate(tuple(shape), dtype)
        _fill(memoryview(as_bytes(buffer)), pieces)
        return wrap(buffer, template)
    others = opaque.elements(torch_dtype_of(label), template)
    if others is None:
        raise ValueError(f"{label!r} is no dtype of host tensors")
    found = _host_of("uint8", [*typed(list, shape), others.units], pieces, others.carrier)
    return others.restore(found)


def tensor(obj: Any) -> list[Any]:
    return [obj.requires_grad, *host(obj.detach())]


def tensor_of(needs_gradient: Any, label: str, shape: Any, *pieces: Any) -> Any:
    found = _host_of(label, shape, pieces, sys.modules["torch"].empty(0))
    return found.requires_grad_() if typed(bool, needs_gradient) else found


def parameter_of(needs_gradient: Any, label: str, shape: Any, *pieces: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.nn.Parameter(_host_of(label, shape, pieces, torch.empty(0)), typed(bool, needs_gradient))


def is_jax(obj: Any) -> bool:
    return isinstance(obj, sys.modules["jax"].Array)


def jax_of(label: str, shape: Any, *pieces: Any) -> Any:
    if typed(str, label).upper() not in DType.__members__:
        return sys.modules["jax"].numpy.asarray(numpy_of(f"ml_dtypes.{label}", shape, *pieces))
    return _host_of(label, shape, pieces, sys.modules["jax"].numpy.zeros(0))


def jax_key(obj: Any) -> list[Any]:
    random = sys.modules["jax"].random
    return [str(random.key_impl(obj)), *host(random.key_data(obj))]


def jax_key_of(impl: Any, *data: Any) -> Any:
    return sys.modules["jax"].random.wrap_key_data(jax_of(*data), impl=typed(str, impl))


def torch_dtype_of(name: Any) -> Any:
    torch = sys.modules["torch"]
    return typed(torch.dtype, vars(torch).get(typed(str, name)))

"""Plain Python data and arrays as bytes, and back: what object collectives send instead of pickles.

None, bool, int of any size, float, complex, str, bytes, list, tuple, dict, set, frozenset, arrays and scalars of NumPy, arrays
of torch and JAX, nested as you like. Types are kept exactly: a subclass (a namedtuple, an enum) is refused, not flattened.
Arrays arrive packed, in host memory, in their own library; torch's Parameters as plain tensors.

The format is msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md), with extension types for what it lacks.
Decoding runs nothing that the bytes name: the libraries stand in a table here. Every length is checked against what was
received before memory is allocated.
"""

from __future__ import annotations

import importlib
import math
import struct
import sys
import warnings

from .buffer import Buffer
from .dlpack import allocate, resolve, wrap
from .typed import Any
from .types import DeviceType, DType

LONGEST = 2**30  # bytes of one encoded object
DEEPEST = 100  # containers inside each other

_TUPLE, _SET, _FROZENSET, _INT, _COMPLEX, _ARRAY = range(1, 7)
_MAKERS = {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset}
_MARKS: dict[type, int] = {made: mark for mark, made in _MAKERS.items()}
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_KNOWN = ("None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, and host arrays of NumPy, torch and "
          "JAX")
_LIBRARIES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy", "jaxlib": "jax.numpy"}  # of a type: who makes arrays
_DAMAGED = "these bytes are no object that arraycomm encoded"


def _msgpack() -> Any:
    try:
        return importlib.import_module("msgpack")
    except ImportError:
        raise ImportError("object collectives need the package msgpack; install it") from None


def encode(obj: object) -> bytes:
    """The object as bytes. TypeError for what is not supported, ValueError for what is too deep or too long."""
    packed = _pack(_described(obj, DEEPEST))
    if len(packed) > LONGEST:
        raise ValueError(f"the object takes {len(packed)} bytes, the limit is {LONGEST}; send long arrays by the collectives "
                         "for arrays")
    return packed


def decode(data: bytes | memoryview) -> Any:
    """The object that was encoded. ValueError for bytes that encode() did not make."""
    if len(data) > LONGEST:
        raise ValueError(f"an encoded object of {len(data)} bytes, the limit is {LONGEST}")
    try:
        return _unpack(data, DEEPEST + 1)  # the innermost container opens one more
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"{_DAMAGED}: {type(error).__name__}: {error}") from error


# ---- there ----


def _pack(described: object) -> bytes:
    # Only whole numbers beyond 64 bits come to `default`: the rest was described before.
    packed: bytes = _msgpack().packb(described, use_bin_type=True, strict_types=True, default=_long_integer,
                                     unicode_errors="surrogatepass")
    return packed


def _long_integer(value: Any) -> Any:
    return _msgpack().ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _described(obj: Any, depth: int) -> Any:
    """The object in what msgpack knows: containers and extension types."""
    kind = type(obj)
    if kind in _PLAIN:
        return obj
    if depth == 0:
        raise ValueError(f"the object has more than {DEEPEST} containers inside each other, or contains itself")
    if kind is list:
        return [_described(item, depth - 1) for item in obj]
    if kind is dict:
        return {_described(key, depth - 1): _described(value, depth - 1) for key, value in obj.items()}
    extension = _msgpack().ExtType
    if kind in _MARKS:
        return extension(_MARKS[kind], _pack([_described(item, depth - 1) for item in obj]))
    if kind is complex:
        return extension(_COMPLEX, struct.pack("<dd", obj.real, obj.imag))
    return extension(_ARRAY, _array(obj))


def _is_numpy_scalar(obj: object) -> bool:
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    return generic is not None and isinstance(obj, generic)


def _array(obj: Any) -> bytes:
    scalar, kind = _is_numpy_scalar(obj), type(obj)
    library = next((_LIBRARIES[top] for base in kind.__mro__ if (top := base.__module__.partition(".")[0]) in _LIBRARIES), None)
    if library is None or not (scalar or hasattr(kind, "__dlpack__")):
        raise TypeError(f"an object of type {kind.__module__}.{kind.__qualname__} cannot be sent without pickle; what can: "
                        f"{_KNOWN}. ARRAYCOMM_ALLOW_PICKLE=1 (allow_pickle=True), on all ranks that trust each other, allows "
                        "every object that can be pickled")
    buffer = resolve(importlib.import_module("numpy").asarray(obj) if scalar else obj)
    if buffer.device_type != DeviceType.CPU:
        raise TypeError("an object may hold arrays in host memory only; copy this one to the CPU first")
    return _pack([library, DType(buffer.dtype).label, list(buffer.shape), scalar, bytes(memoryview(as_bytes(buffer)))])


def as_bytes(buffer: Buffer) -> Buffer:
    """The same memory as bytes in one dimension."""
    return Buffer(buffer.address, buffer.nbytes, DType.UINT8, buffer.device_type, buffer.device_index, buffer.readonly,
                  (buffer.nbytes,), buffer)


# ---- and back ----


def _unpack(data: bytes | memoryview, depth: int) -> Any:
    if depth == 0:
        raise ValueError(f"more than {DEEPEST} containers inside each other")

    def extension(mark: int, content: bytes) -> Any:
        return _extended(mark, content, depth - 1)

    # unpackb() bounds every length by that of the data.
    return _msgpack().unpackb(data, raw=False, strict_map_key=False, ext_hook=extension, unicode_errors="surrogatepass")


def _extended(mark: int, content: bytes, depth: int) -> Any:
    if mark in _MAKERS:
        return _MAKERS[mark](_unpack(content, depth))
    if mark == _INT:
        return int.from_bytes(content, "little", signed=True)
    if mark == _COMPLEX:
        return complex(*struct.unpack("<dd", content))
    if mark == _ARRAY:
        return _array_of(*_unpack(content, depth))
    raise ValueError(f"unknown extension type {mark}")


def _array_of(library: str, label: str, shape: list[int], scalar: bool, content: bytes) -> Any:
    if library not in _LIBRARIES.values() or label.upper() not in DType.__members__:
        raise ValueError(f"an array of library {library!r} and dtype {label!r}")
    dtype = DType[label.upper()]
    if any(type(length) is not int or length < 0 for length in shape) or len(shape) > 64 \
            or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"an array of shape {shape} and dtype {label} in {len(content)} bytes")
    buffer = allocate(tuple(shape), dtype)
    memoryview(as_bytes(buffer))[:] = content
    array = wrap(buffer, _template(library))
    return array[()] if scalar else array


def _template(library: str) -> Any:
    """An array of this library; of NumPy, with a warning, where it is not installed."""
    try:
        return importlib.import_module(library).zeros(0)
    except ImportError:
        if library == "numpy":
            raise
        warnings.warn(f"an object with an array of {library} arrived where that is not installed; it is a NumPy array here",
                      RuntimeWarning, stacklevel=2)
        return _template("numpy")

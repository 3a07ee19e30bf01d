"""Arrays of dtypes that the engine does not know, as bytes: data movement does not depend on the dtype.

NumPy's structured arrays, dates, strings of fixed length, long doubles, narrow integers and foreign byte order; torch's and JAX's
dtypes without arithmetic here; JAX's random keys; buffers of any format. The elements of such an array are told apart by the name
of their dtype: the ranks compare a number that is made of it. Arrays that hold references (objects, strings of any length) are
refused. Nothing here imports a framework.
"""

from __future__ import annotations

import contextlib
import math
import sys
import zlib
from collections.abc import Callable
from typing import Any

from arraycomm._engine import ffi, lib

from . import arrays
from .buffer import Buffer
from .dlpack import resolve, resolve_out
from .types import DType


class Opaque:
    """A Buffer of such an array: count is in bytes, dtype is the number, shape is the array's own.

    carrier: an array of bytes over the same memory, with one dimension more. restore(array like carrier): of the array's dtype.
    units: bytes of an element. Everything else is as the carrier's Buffer has it.
    """

    __slots__ = ("buffer", "shape", "dtype", "units", "name", "carrier", "restore")

    def __init__(self, buffer: Buffer, name: str, carrier: Any, restore: Callable[[Any], Any]) -> None:
        self.buffer, self.name, self.carrier, self.restore = buffer, name, carrier, restore
        self.shape, self.units = buffer.shape[:-1], buffer.shape[-1]
        number = zlib.crc32(name.encode(errors="surrogatepass"))
        self.dtype = lib.ACOMM_OPAQUE + number % (lib.ACOMM_OPAQUE_END - lib.ACOMM_OPAQUE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.buffer, name)

    def over(self, buffer: Any) -> Opaque:
        """An Opaque of the same dtype over another Buffer of bytes."""
        return Opaque(buffer, self.name, self.carrier, self.restore)


def readable(array: Any) -> Any:
    """As resolve(), of any dtype: a Buffer, or an Opaque."""
    try:
        return resolve(array)
    except TypeError as refused:
        if type(array) is Opaque:
            return array
        found = _bytes(array, refused)
        return Opaque(resolve(found[1]), *found)


def writable(array: Any) -> Any:
    """The same as resolve_out()."""
    try:
        return resolve_out(array)
    except TypeError as refused:
        if arrays.derives(array, "jax", "Array"):
            raise arrays.readonly_out(array, None) from None
        found = _bytes(array, refused)
        if arrays.derives(array, "torch", "Tensor") and (array.is_conj() or array.is_neg()):
            raise arrays.derived_out(array, None) from None
        return Opaque(resolve_out(found[1]), *found)


def elements(dtype: Any, template: Any) -> Opaque | None:
    """An empty Opaque of a dtype of the template's library that moves as bytes. None for other dtypes."""
    found = None
    if not isinstance(dtype, DType) and dtype is not None:
        with contextlib.suppress(TypeError, ValueError):  # not a dtype of this library
            if arrays.derives(template, "torch", "Tensor"):
                found = template.new_empty(0, dtype=dtype)
            elif arrays.derives(template, "numpy", "ndarray"):
                found = sys.modules["numpy"].empty(0, dtype)
    made = None if found is None else readable(found)
    return made if isinstance(made, Opaque) else None


def nothing_of(buffer: Any) -> Any:
    """No elements of its dtype, on its device: a Buffer, or an Opaque."""
    if isinstance(buffer, Opaque):
        return buffer.over(buffer.buffer.part(0, (0, buffer.units)))
    return buffer.part(0, (0,))


def dtype_name(buffer: Any) -> str:
    """The dtype's name in errors, for a Buffer or an Opaque."""
    return buffer.name if isinstance(buffer, Opaque) else DType(buffer.dtype).label


def row(buffer: Any) -> int:
    """The engine's element count of one row of the first dimension."""
    elements: int = math.prod(buffer.shape[1:])
    return elements * (buffer.units if isinstance(buffer, Opaque) else 1)


_Found = tuple[str, Any, Callable[[Any], Any]]  # name, carrier, restore


def _bytes(array: Any, refused: TypeError) -> _Found:
    if arrays.derives(array, "jax", "Array") and not arrays.hint(array, keys=True):
        return _of_jax(array)
    if arrays.hint(array):
        raise refused
    if arrays.derives(array, "numpy", "ndarray") or arrays.derives(array, "numpy", "generic"):
        return _of_numpy(array)
    if arrays.derives(array, "torch", "Tensor"):
        if str(array.dtype).removeprefix("torch.").upper() in DType.__members__:
            raise refused  # rejected for another reason than its dtype
        return _of_torch(array)
    if refused.__cause__ is not None:  # not for its format alone
        raise refused
    try:
        view = memoryview(array)
    except TypeError:
        raise refused from None
    return _of_buffer(view)


# ---- NumPy ----


def numpy_name(descr: Any) -> str:
    """A unique name of a NumPy dtype, equal on all machines. TypeError if its elements are references."""
    if descr.hasobject or descr.kind == "T":
        raise TypeError(f"dtype {descr} holds references to memory of this process, which mean nothing in another one; send "
                        "such data as an object (broadcast_object, send_object), or convert the array to numbers")
    if descr.subdtype is not None:
        return f"{numpy_name(descr.subdtype[0])}{list(descr.subdtype[1])}"
    if descr.fields:
        fields = (f"{field}:{numpy_name(descr.fields[field][0])}@{descr.fields[field][1]}" for field in descr.names)
        return f"{{{','.join(fields)}}}{descr.itemsize}"
    if descr.type.__module__ != "numpy":  # ml_dtypes'
        return str(descr.name)
    long = f", {sys.modules['numpy'].finfo(descr).nmant} bits" if descr.char in "gG" else ""  # the machine's
    return f"{descr.str}{long}"


def _of_numpy(array: Any) -> _Found:
    numpy = sys.modules["numpy"]
    plain, descr = numpy.asarray(array).view(numpy.ndarray), array.dtype
    name = numpy_name(descr)
    if not descr.itemsize:
        return name, numpy.empty((*plain.shape, 0), numpy.uint8), lambda found: numpy.zeros(found.shape[:-1], descr)
    carrier = plain[..., None].view(numpy.uint8)
    if isinstance(array, numpy.generic):
        carrier.flags.writeable = False  # a copy
    return name, carrier, lambda found: found.view(descr).reshape(found.shape[:-1])


# ---- torch ----


def _of_torch(tensor: Any) -> _Found:
    torch, dtype = sys.modules["torch"], tensor.dtype
    carrier = tensor.detach().resolve_conj().resolve_neg().unsqueeze(-1).view(torch.uint8)
    return str(dtype).removeprefix("torch."), carrier, lambda found: found.view(dtype).squeeze(-1)


# ---- JAX ----


def _of_jax(array: Any) -> _Found:
    """By a copy on the host."""
    jax, numpy = sys.modules["jax"], sys.modules["numpy"]
    if not jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        name, carrier, restore = _of_numpy(numpy.asarray(array))
        return name, carrier, lambda found: jax.device_put(restore(found), array.sharding)
    data, impl = numpy.asarray(jax.random.key_data(array)), jax.random.key_impl(array)

    def keys(found: Any) -> Any:
        return jax.random.wrap_key_data(jax.device_put(found.view(data.dtype), array.sharding), impl=impl)

    return str(array.dtype), numpy.ascontiguousarray(data).view(numpy.uint8), keys


# ---- buffers ----

_REFERENCES = frozenset("O&zZPX")  # objects; pointers to values, text, anything, functions


def _of_buffer(view: memoryview) -> _Found:
    """The result is a memoryview: of the same format where it is one of a letter, else of bytes, with a dimension more."""
    letter, width = view.format, view.itemsize
    shape: tuple[int, ...] = view.shape or ()
    letters = "".join(letter.split(":")[::2])  # without the fields' names
    for complex_number in ("Zf", "Zd", "Zg"):
        letters = letters.replace(complex_number, "")
    if not _REFERENCES.isdisjoint(letters):
        raise TypeError(f"a buffer of format {letter!r} holds references to memory of this process, which mean nothing in "
                        "another one; send such data as an object (broadcast_object, send_object), or convert it to numbers")
    memory: Any = view if view.c_contiguous else view.tobytes()
    place = ffi.from_buffer(memory)  # holds the buffer
    readonly = view.readonly or memory is not view
    carrier = Buffer(int(ffi.cast("uintptr_t", place)), view.nbytes, DType.UINT8, 1, 0, readonly, (*shape, width), place)

    def restore(found: memoryview) -> memoryview:
        with contextlib.suppress(TypeError, ValueError):  # no such letter; no elements
            return found.cast("B").cast(letter, (found.shape or ())[:-1])  # type: ignore[call-overload,no-any-return]
        return found

    return f"format {letter}, {width} bytes", carrier, restore

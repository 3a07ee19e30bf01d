"""Exporters of buffers that leave things out or say what cannot be, and the array libraries that are exporters of their own kind:
MLX, PyArrow, TVM FFI and array-api-strict, each as it is installed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import array_api_strict
import mlx.core as mx
import numpy as np
import pyarrow
import pytest
import tvm_ffi

import arraycomm
from arraycomm.core.arrays.dlpack import pack, resolve, resolve_out

from .arrays import bits

STRIDES, FORMAT = 0x18, 0x4


class Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
                ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_ssize_t)), ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


get_buffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Buffer), ctypes.c_int)
"""bf_getbuffer of a type in C."""


class Slot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("function", ctypes.c_void_p)]


class Spec(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("size", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
                ("slots", ctypes.POINTER(Slot))]


_kept: list[Any] = []  # types live as long as the process
_make_type = ctypes.pythonapi["PyType_FromSpec"]
_make_type.restype = ctypes.py_object
_make_type.argtypes = [ctypes.POINTER(Spec)]


def exporter(fill: Any) -> Any:
    """An object of a new type in C, whose buffer `fill(view, flags)` describes."""
    def call(self: int, view: Any, flags: int) -> int:
        ctypes.memset(view, 0, ctypes.sizeof(Buffer))
        fill(view.contents, flags)
        view.contents.obj = self
        ctypes.pythonapi.Py_IncRef(ctypes.cast(self, ctypes.py_object))
        return 0

    function = get_buffer(call)
    slots = (Slot * 2)(Slot(1, ctypes.cast(function, ctypes.c_void_p)), Slot(0, None))  # Py_bf_getbuffer
    size = object.__basicsize__
    kind = _make_type(Spec(b"foreign.Exporter", size, 0, 0, slots))
    _kept.append((function, slots, fill))
    return kind()


def describe(x: np.ndarray[Any, Any], *, only_with_strides: bool = True, shape: tuple[int, ...] | None = None,
             length: int | None = None, ndim: int | None = None) -> Any:
    """What an extension of old pybind11 says: one dimension, without a shape, unless strides are asked for."""
    lengths = x.shape if shape is None else shape
    sizes = (ctypes.c_ssize_t * max(x.ndim, 1))(*lengths)
    steps = (ctypes.c_ssize_t * max(x.ndim, 1))(*x.strides)
    letter = ctypes.c_char_p(x.dtype.char.encode())

    def fill(view: Buffer, flags: int) -> None:
        view.buf, view.itemsize, view.ndim = x.ctypes.data, x.itemsize, 1
        view.len = x.nbytes if length is None else length
        if flags & FORMAT:
            view.format = letter
        if flags & STRIDES == STRIDES or not only_with_strides:
            view.ndim = x.ndim if ndim is None else ndim
            view.shape, view.strides = sizes, steps

    _kept.append((x, sizes, steps, letter))
    return exporter(fill)


ARRAYS = {
    "1-d": np.arange(5.0),
    "2-d": np.arange(6, dtype=np.float32).reshape(2, 3),
    "0-d": np.array(7, np.int16),
    "empty": np.zeros((0, 3)),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "reversed": np.arange(6)[::-1],
    "repeated": np.broadcast_to(np.arange(3.0), (4, 3)),
    "six": np.arange(64, dtype=np.uint8).reshape((2,) * 6),
}


@pytest.fixture
def alone() -> Iterator[arraycomm.Group]:
    with arraycomm.init() as group:
        yield group


@pytest.mark.parametrize("name", ARRAYS)
def test_shape_only_where_strides_are_asked_for(name: str, alone: arraycomm.Group) -> None:
    """The fast path asks without strides."""
    x = ARRAYS[name]
    found = alone.all_reduce(describe(x))
    assert found.shape == x.shape and bits(found) == bits(x)
    assert bits(alone.all_reduce(x, out=np.zeros_like(x, order="C"))) == bits(x)
    assert resolve(describe(x)).shape == x.shape and bits(memoryview(pack(describe(x)))) == bits(x)


def test_shape_only_where_strides_are_asked_for_as_output(alone: arraycomm.Group) -> None:
    x = np.zeros((2, 3))
    alone.all_reduce(np.ones((2, 3)), out=describe(x))
    assert x.tolist() == [[1] * 3] * 2
    with pytest.raises(ValueError, match="not C-contiguous"):
        alone.all_reduce(np.ones((3, 2)), out=describe(x.T))


@pytest.mark.parametrize("wrong", [
    {"length": 8}, {"length": 1 << 40}, {"shape": (1 << 40,), "length": 40}, {"shape": (1 << 62,)}, {"shape": (-5,)}, {"ndim": 0},
    {"ndim": -1}], ids=str)
def test_shapes_that_cannot_be(wrong: dict[str, Any], alone: arraycomm.Group) -> None:
    for only in (True, False):
        x = describe(np.arange(5.0), only_with_strides=only, **wrong)
        for call in (alone.all_reduce, alone.broadcast, resolve, resolve_out):
            with pytest.raises(TypeError, match=r"cannot read the foreign.Exporter: .*do not belong together"):
                call(x)


def test_no_shape_at_all(alone: arraycomm.Group) -> None:
    def fill(view: Buffer, flags: int) -> None:
        view.buf, view.itemsize, view.ndim, view.len = ctypes.addressof(memory), 8, 2, 48

    memory = (ctypes.c_double * 6)()
    with pytest.raises(TypeError, match="do not belong together"):
        alone.all_reduce(exporter(fill))


# ---- real libraries ----


def on_two(work: Any) -> list[Any]:
    return arraycomm.run(work, 2, timeout=60.0)


MLX: dict[str, Any] = {
    "plain": lambda: mx.arange(6).reshape(2, 3),
    "transposed": lambda: mx.arange(6).reshape(2, 3).T,
    "every other": lambda: mx.arange(12)[::2],
    "reversed": lambda: mx.arange(6)[::-1],
    "scalar": lambda: mx.array(3),
    "empty": lambda: mx.zeros((0, 3)),
    "lazy": lambda: mx.ones((4, 4)) @ mx.ones((4, 4)),
    "broadcast": lambda: mx.broadcast_to(mx.array([1, 2]), (3, 2)),
    **{name: lambda name=name: mx.array([1, 0, 1]).astype(getattr(mx, name))
       for name in ("bool_", "int8", "uint64", "float16", "bfloat16", "float32", "complex64")},
    "float64": lambda: mx.array([1.1, -2.0**70 - 1], dtype=mx.float64),
}


def plain(x: Any) -> Any:
    return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x)


@pytest.mark.parametrize("name", MLX)
def test_mlx(name: str) -> None:
    def work(group: arraycomm.Group) -> None:
        x = MLX[name]()
        total = group.all_reduce(x, "avg" if name == "complex64" else "max")
        for found in (total, group.broadcast(x), group.all_to_all(mx.stack([x, x]))[0]):
            assert type(found) is type(x) and found.dtype == x.dtype and np.array_equal(plain(found), plain(x))
        gathered = group.all_gather(x, form="stack")
        assert gathered.shape == (2, *x.shape) and np.array_equal(plain(gathered[1]), plain(x))

    on_two(work)


def test_mlx_as_output() -> None:
    """It shows its memory by its buffer, which is writable."""
    def work(group: arraycomm.Group) -> None:
        x = mx.ones(3)
        mx.eval(x)
        assert group.all_reduce(x, out=x) is x and x.tolist() == [2, 2, 2]

    on_two(work)


def test_tvm_ffi() -> None:
    def work(group: arraycomm.Group) -> None:
        x = tvm_ffi.from_dlpack(np.arange(6, dtype=np.float32).reshape(2, 3))
        found = group.all_reduce(x)
        assert type(found) is type(x) and np.from_dlpack(found).tolist() == [[0, 2, 4], [6, 8, 10]]
        assert np.from_dlpack(group.all_gather(x)).shape == (4, 3)
        unnamed = tvm_ffi.from_dlpack(np.ones(2, "complex64"))  # TVM FFI has no name for these
        assert np.from_dlpack(group.all_reduce(unnamed)).tolist() == [2, 2]

    on_two(work)


def test_array_api_strict() -> None:
    def work(group: arraycomm.Group) -> None:
        x = array_api_strict.reshape(array_api_strict.arange(6), (2, 3))
        for y in (x, x.T):
            found = group.all_reduce(y)
            assert type(found) is type(x) and found.dtype == x.dtype and array_api_strict.all(found == 2 * y)
            for part in group.all_gather(y, uneven=True, form="list"):
                assert type(part) is type(x) and array_api_strict.all(part == y)

    on_two(work)


def test_pyarrow() -> None:
    """Arrays and buffers are immutable: they are read. What comes is a memoryview, as PyArrow has no from_dlpack."""
    def work(group: arraycomm.Group) -> None:
        for x in (pyarrow.array([1.0, 2.0]), pyarrow.array([0.0, 1.0, 2.0])[1:]):
            found = group.all_reduce(x)
            assert isinstance(found, memoryview) and found.tolist() == [2, 4]
            with pytest.raises(ValueError, match="read-only"):
                group.all_reduce(x, out=x)
        assert group.all_reduce(pyarrow.Tensor.from_numpy(np.ones((2, 1)).T)).tolist() == [[2, 2]]
        assert bytes(group.broadcast(pyarrow.py_buffer(b"ab" if group.rank else b"cd"))) == b"cd"
        with pytest.raises(ValueError, match="read-only"):
            group.broadcast(pyarrow.py_buffer(b"ab"), out=pyarrow.py_buffer(b"ab"))
        group.broadcast(pyarrow.py_buffer(b"ab" if group.rank else b"cd"), out=(room := pyarrow.allocate_buffer(2)))
        assert room.to_pybytes() == b"cd"
        for x in (pyarrow.array([1, None]), pyarrow.array(["a"]), pyarrow.array([True])):
            with pytest.raises(TypeError, match="cannot read the pyarrow"):
                group.all_reduce(x)

    on_two(work)

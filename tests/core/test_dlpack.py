"""From objects with a buffer, and from DLPack producers of no library that is known by name, to a Buffer and back."""

from __future__ import annotations

import array
import ctypes
import subprocess
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest

import arraycomm
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.dlpack import allocate, pack, resolve, resolve_out, wrap
from arraycomm.core.arrays.opaque import readable, writable
from arraycomm.core.arrays.types import DType
from arraycomm.core.bootstrap.store import HashStore

from .arrays import SUPPORTED, bits


def values(b: Buffer) -> Any:
    return memoryview(b).tolist()


# ---- the buffer protocol ----


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_array_array(code: str) -> None:
    x = array.array(code, [1, 2, 3])
    b = resolve(x)
    assert b.address == x.buffer_info()[0] and DType(b.dtype).itemsize == x.itemsize and not b.readonly
    view = wrap(pack(x), x)
    assert isinstance(view, memoryview) and view.tolist() == [1, 2, 3] and not view.readonly


def test_held_bytearray_cannot_be_resized() -> None:
    x = bytearray(b"abc")
    b = resolve_out(x)
    with pytest.raises(BufferError):
        x.append(0)
    del b
    x.append(0)


def test_memoryviews() -> None:
    assert bits(memoryview(resolve(memoryview(b"abcdef")[::-2]))) == b"fdb"
    with pytest.raises(ValueError, match="bytes is read-only"):
        resolve_out(b"abc")
    with pytest.raises(TypeError, match=f"format 'c' is not supported; {SUPPORTED}"):
        resolve(memoryview(b"abc").cast("c"))


def test_results_for_bytes() -> None:
    like: Any = b""
    assert wrap(allocate((2, 0), DType.FLOAT32), like).shape == (2, 0)
    block = allocate((2,), DType.BFLOAT16)  # for which a memoryview has no letter
    assert wrap(block, like) is block


@pytest.mark.parametrize("x", [3, 2.5, [1, 2], None, "text", {}, object()],
                         ids=lambda x: type(x).__name__)
def test_not_an_array(x: object) -> None:
    with pytest.raises(TypeError, match=f"expected an array .*, got {type(x).__name__}; .*for numbers use numpy.asarray"):
        resolve(x)


# ---- other producers ----


class Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack before 1.0."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]


_destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi["PyCapsule_New"]  # an object of its own: other modules declare other types
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _destructor]


class Producer:
    """An old library: legacy capsules, no max_version, no strides."""

    def __init__(self, device: tuple[int, int] = (1, 0), code: int = 2, strides: bool = False,
                 name: bytes = b"dltensor", null: bool = False) -> None:
        self.data = (ctypes.c_float * 8)(*range(8))
        self.freed = 0
        self.device, self.name = device, name
        self.shape = (ctypes.c_int64 * 2)(2, 3)
        steps = ctypes.cast((ctypes.c_int64 * 2)(1, 2), ctypes.POINTER(ctypes.c_int64)) if strides else None
        data = None if null else ctypes.addressof(self.data)
        self.tensor = Tensor(data, *device, 2, code, 32, 1, self.shape, steps, 8)
        self.on_free = _destructor(self._freed)

    def _freed(self, _capsule: int | None) -> None:
        self.freed += 1

    def __dlpack__(self, stream: object = None) -> object:
        return _new_capsule(ctypes.addressof(self.tensor), self.name, self.on_free)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_legacy_capsule() -> None:
    x = Producer()
    b = resolve(x)
    assert (b.address, b.shape, b.dtype) == (ctypes.addressof(x.data) + 8, (2, 3), DType.FLOAT32)
    assert values(b) == [[2, 3, 4], [5, 6, 7]]
    assert b.readonly and x.freed == 0
    del b
    assert x.freed == 1
    with pytest.raises(ValueError, match="without a version"):
        resolve_out(x)
    assert x.freed == 2
    assert isinstance(wrap(pack(x), x), memoryview)


def test_a_copy_is_read_and_not_written() -> None:
    """DLPack's flag for it: the array itself would stay as it is."""
    class Copying:
        def __init__(self) -> None:
            self.array = np.arange(3.0)

        def __dlpack__(self, **given: Any) -> object:
            return self.array.__dlpack__(**given | {"copy": True})

    x = Copying()
    assert values(resolve(x)) == [0, 1, 2]
    with pytest.raises(ValueError, match="a copy, so that a result written there would be lost"):
        resolve_out(x)
    with arraycomm.init(store=HashStore(), rank=0, world_size=1) as group:
        for fill in (lambda: group.all_reduce(x, out=x), lambda: group.broadcast(out=x), lambda: group.recv(0, out=x)):
            with pytest.raises(ValueError, match="would be lost"):
                fill()


def test_legacy_capsule_with_strides() -> None:
    x = Producer(strides=True)
    assert values(resolve(x)) == [[2, 4, 6], [3, 5, 7]]
    assert x.freed == 1


@pytest.mark.parametrize(
    ("device", "expected"), [((2, 1), (2, 1)), ((10, 0), (10, 0)), ((3, 1), (1, 0)), ((1, 5), (1, 0))]
)
def test_devices_are_reported_without_touching_memory(device: tuple[int, int], expected: tuple[int, int]) -> None:
    b = resolve(Producer(device))
    assert (b.device_type, b.device_index) == expected


def test_strided_memory_of_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="not C-contiguous and not in host memory"):
        resolve(Producer((2, 0), strides=True))
    with pytest.raises(ValueError, match="copy the array with its own library"):
        pack(Producer((2, 0)))


def test_broken_producers() -> None:
    with pytest.raises(TypeError, match="dtype of DLPack's code 17, 32 bits, 1 lanes is not supported"):
        resolve(Producer(code=17))
    with pytest.raises(TypeError, match="no DLPack tensor"):
        resolve(Producer(name=b"something"))
    with pytest.raises(TypeError, match="Producer has no memory of its own"):
        resolve(Producer(null=True))
    x = Producer()
    x.tensor.shape = None
    for ndim in (2, 2**31 - 1):
        x.tensor.ndim = ndim
        for call in (resolve, resolve_out, pack):
            with pytest.raises(TypeError, match="cannot read the .*Producer: its DLPack tensor has no shape"):
                call(x)
    for ndim in (-1, 65):
        y = Producer()
        y.tensor.ndim = ndim
        with pytest.raises(ValueError, match=f"an array of {ndim} dimensions; at most 64 are possible"):
            resolve(y)
    x.tensor.ndim = 0
    assert values(resolve(x)) == 2


def test_producers_whose_properties_fail() -> None:
    """The error is that of the array all the same."""
    class Odd(Producer):
        @property
        def dtype(self) -> object:
            raise RuntimeError

        __class__ = dtype  # type: ignore[assignment]

    for call in (resolve, resolve_out, pack, readable, writable):
        with pytest.raises(TypeError, match="DLPack's code 5, 32 bits"):  # complex of halves
            call(Odd(code=5))
    with pytest.raises(TypeError, match="expected an array"):
        resolve(mock.Mock(spec=np.ndarray))


def test_error_of_a_producer_is_the_cause() -> None:
    class Failing:
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("not today\nsecond line")

    with pytest.raises(TypeError, match="cannot read the .*Failing: not today$") as caught:
        resolve(Failing())
    assert isinstance(caught.value.__cause__, BufferError)


def test_library_with_a_namespace() -> None:
    class Namespace:
        @staticmethod
        def from_dlpack(x: Any) -> Any:
            return np.from_dlpack(x)

    class Array(Producer):
        def __array_namespace__(self) -> type:
            return Namespace

    y = wrap(pack(Array()), Array())
    assert isinstance(y, np.ndarray) and y.tolist() == [[2, 3, 4], [5, 6, 7]]


def test_importing_loads_no_framework() -> None:
    code = (
        "import sys; import arraycomm.core.arrays.dlpack as d; d.resolve(b'abc'); "
        "print(sorted({'numpy', 'torch', 'jax', 'ml_dtypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

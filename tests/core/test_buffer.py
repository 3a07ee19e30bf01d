"""Buffer itself: fields, parts, overlap, the buffer protocol and DLPack export; and the memory behind it."""

from __future__ import annotations

import ctypes
import gc
import os

import numpy as np
import pytest

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.dlpack import adopt, allocate, overlaps, pack, resolve, resolve_out, wrap
from arraycomm.core.arrays.types import DType

from ..threads import at_once

MAPPED = 1 << 20  # bytes, well above what malloc serves


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_fields_of_a_constructed_buffer() -> None:
    memory = bytearray(24)
    b = Buffer(address=4096, count=6, dtype=DType.FLOAT32, device_type=2, device_index=1, readonly=True, shape=(2, 3),
               owner=memory)
    assert (b.address, b.count, b.dtype, b.device_type, b.device_index) == (4096, 6, DType.FLOAT32, 2, 1)
    assert b.readonly is True and b.shape == (2, 3) and b.owner is memory and b.nbytes == 24
    assert "(2, 3) float32" in repr(b) and "read-only" in repr(b)


def test_a_shape_of_another_count_is_refused() -> None:
    with pytest.raises(ValueError, match="3 elements and shape"):
        Buffer(0, 3, DType.INT8, 1, 0, False, (2, 2), None)


@pytest.mark.parametrize(("shape", "dtype"), [((4,), 99), ((2**62, 4), int(DType.INT8)), ((-1,), int(DType.INT8))])
def test_memory_that_cannot_be_adopted_is_given_back(shape: tuple[int, ...], dtype: int) -> None:
    given: list[int] = []
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(given.append)
    address = ctypes.cast(release, ctypes.c_void_p).value
    assert address
    with pytest.raises(ValueError):
        adopt(shape, dtype, 4096, address, 7)
    assert given == [7]


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.COMPLEX64, DType.BOOL, DType.FLOAT8_E5M2])
def test_a_buffer_is_an_array_of_every_dtype(dtype: DType) -> None:
    memory = allocate((6,), dtype)
    view = Buffer(memory.address, 6, dtype, 1, 0, False, (2, 3), memory)
    for found in (resolve(view), resolve_out(view), resolve(view.part(0, (2, 3)))):
        assert (found.address, found.dtype, found.shape, found.readonly) == (memory.address, dtype, (2, 3), False)
    fixed = Buffer(memory.address, 6, dtype, 1, 0, True, (6,), memory)
    assert resolve(fixed).readonly
    with pytest.raises(ValueError, match="read-only"):
        resolve_out(fixed)
    elsewhere = resolve(Buffer(4096, 6, dtype, 2, 3, False, (6,), None))
    assert (elsewhere.device_type, elsewhere.device_index) == (2, 3)


def test_fields_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        allocate((1,), DType.INT8).address = 0


@pytest.mark.parametrize("dtype", [-1, len(DType)])
def test_unknown_dtype_numbers_are_refused(dtype: int) -> None:
    with pytest.raises(ValueError, match="dtype number"):
        Buffer(0, 0, dtype, 1, 0, False, (0,), None)
    with pytest.raises(ValueError, match="dtype number"):
        allocate((1,), dtype)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (7, 1000), (3, 1 << 18)])
@pytest.mark.parametrize("dtype", [DType.INT8, DType.COMPLEX128])
def test_allocated_memory_is_aligned_and_writable(shape: tuple[int, ...], dtype: DType) -> None:
    b = allocate(shape, dtype)
    assert b.address % 64 == 0 and b.address != 0
    assert b.count == int(np.prod(shape)) and b.shape == shape and not b.readonly
    np.asarray(memoryview(b))[...] = 1


@pytest.mark.parametrize("shape", [(-1,), (1 << 62, 4), (1 << 61,)])
def test_impossible_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="impossible shape"):
        allocate(shape, DType.FLOAT64)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(MemoryError, match="no memory for a result of 4611686018427387904 bytes"):
        allocate((1 << 59,), DType.FLOAT64)


def test_shape_must_be_a_tuple() -> None:
    with pytest.raises(TypeError, match="tuple"):
        allocate([2, 3], DType.FLOAT64)  # type: ignore[arg-type]


def test_part_shares_memory_and_keeps_it() -> None:
    whole = pack(np.arange(12, dtype=np.int32).reshape(4, 3))
    row = whole.part(3, (1, 3))
    assert row.address == whole.address + 12
    del whole
    gc.collect()
    allocate((12,), DType.INT32)
    assert np.asarray(memoryview(row)).tolist() == [[3, 4, 5]]
    assert wrap(row, np.empty(0)).tolist() == [[3, 4, 5]]


@pytest.mark.parametrize(("start", "shape"), [(0, (13,)), (12, (1,)), (-1, (1,)), (5, (2, 4)), (13, (0,))])
def test_part_outside_is_refused(start: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not lie within 12 elements"):
        allocate((12,), DType.INT32).part(start, shape)


def test_overlaps() -> None:
    x = np.arange(10.0)
    a, b = resolve(x[:6]), resolve(x[5:])
    assert overlaps(a, b) and overlaps(b, a) and overlaps(a, a)
    assert not overlaps(resolve(x[:5]), b)
    assert not overlaps(a, resolve(x[3:3]))
    elsewhere = Buffer(a.address, a.count, a.dtype, 2, 0, False, a.shape, x)
    assert not overlaps(a, elsewhere)


def test_memoryview_of_a_buffer() -> None:
    view = memoryview(pack(np.arange(6, dtype=np.complex64).reshape(2, 3)))
    assert (view.format, view.shape, view.strides, view.readonly) == ("Zf", (2, 3), (24, 8), False)


def test_buffer_protocol_refusals() -> None:
    with pytest.raises(BufferError, match="no letter for bfloat16"):
        memoryview(allocate((2,), DType.BFLOAT16))
    with pytest.raises(BufferError, match="device type 2"):
        memoryview(Buffer(4096, 1, 0, 2, 0, False, (1,), None))
    with pytest.raises((BufferError, ValueError), match="read-only"):
        np.ndarray((3,), np.uint8, buffer=memoryview(resolve(b"abc")))[0] = 1


def test_only_own_memory_is_exported() -> None:
    with pytest.raises(BufferError, match="only memory that arraycomm allocated"):
        resolve(np.ones(3)).__dlpack__()
    with pytest.raises(BufferError, match="without a copy"):
        allocate((3,), DType.INT8).__dlpack__(copy=True)
    with pytest.raises(TypeError, match="allocate"):
        wrap(resolve(np.ones(3)), np.ones(3))


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3)])
def test_capsules_are_what_was_asked_for(version: tuple[int, int] | None) -> None:
    capsule = allocate((3,), DType.INT8).__dlpack__(max_version=version)
    expected = "dltensor_versioned" if version and version[0] else "dltensor"
    assert f'"{expected}"' in repr(capsule)


def test_freed_large_memory_is_used_again() -> None:
    first = allocate((MAPPED,), DType.UINT8)
    address = first.address
    del first
    again = allocate((MAPPED,), DType.UINT8)
    assert again.address == address
    assert allocate((MAPPED,), DType.UINT8).address != address


def test_memory_outlives_its_buffer() -> None:
    array = wrap(pack(np.full(MAPPED, 7, np.uint8)), np.empty(0))
    for _ in range(3):
        np.asarray(memoryview(allocate((MAPPED,), DType.UINT8)))[:] = 0
    assert (array == 7).all()


@pytest.mark.parametrize("count", [10, 20_000, MAPPED])
def test_allocations_do_not_accumulate(count: int) -> None:
    def run(times: int) -> None:
        for _ in range(times):
            np.asarray(memoryview(allocate((count,), DType.UINT8)))[:1] = 1

    times = 10_000 if count < MAPPED else 1_000
    run(2 * times)  # more than a sanitizer holds back
    before = resident()
    run(times)
    assert resident() - before < 4 << 20


def test_allocation_from_many_threads() -> None:
    def work(number: int) -> None:
        for i in range(200):
            size = 100 if i % 2 else MAPPED // 4
            array = wrap(allocate((size,), DType.INT32), np.empty(0))
            array[:] = number
            assert (array == number).all()

    at_once(4, work)

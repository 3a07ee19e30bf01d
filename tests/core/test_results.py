"""Results for inputs whose library makes no arrays; outputs that cannot say whether they may be written; reads of GPU arrays."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import arraycomm
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.bootstrap.store import HashStore
from tests.standin import arrays

from .test_dlpack import Producer


class Bare:
    """Which has just __dlpack__."""

    def __init__(self, x: Any) -> None:
        self.x, self.reads = x, 0

    def __dlpack__(self, **how: Any) -> Any:
        self.reads += 1
        return self.x.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Classes(Bare):
    """Of a library whose dtypes are classes, as Warp's are."""

    @property
    def dtype(self) -> type:
        return type(self.x.dtype.name, (), {"__module__": "a.library"})

    def __array_namespace__(self) -> Any:
        return SimpleNamespace(from_dlpack=lambda buffer: Classes(np.from_dlpack(buffer).astype("float32")))


@pytest.fixture
def alone() -> Iterator[arraycomm.Group]:
    with arraycomm.init(rank=0, world_size=1, store=HashStore()) as group:
        yield group


Calls = dict[str, Callable[[arraycomm.Group, Any], Any]]
CALLS: Calls = {
    "all_reduce": lambda group, x: group.all_reduce(x),
    "all_reduce, slow path": lambda group, x: group.all_reduce(x, timeout=60.0),
    "all_reduce, async": lambda group, x: group.all_reduce(x, async_op=True).result(),
    "reduce": lambda group, x: group.reduce(x),
    "broadcast": lambda group, x: group.broadcast(x),
    "all_gather": lambda group, x: group.all_gather(x),
    "all_gather, a list": lambda group, x: group.all_gather(x, form="list")[0],
    "all_gather, an uneven list": lambda group, x: group.all_gather(x, form="list", uneven=True)[0],
    "gather": lambda group, x: group.gather(x),
    "scatter": lambda group, x: group.scatter(x),
    "reduce_scatter": lambda group, x: group.reduce_scatter(x),
    "all_to_all": lambda group, x: group.all_to_all(x),
}


@pytest.mark.parametrize("x", [b"abcd", bytearray(b"abcd"), array.array("d", [1, 2]), (ctypes.c_float * 3)(1, 2, 3),
                               (ctypes.c_bool * 2)(True, False), np.ones((2, 3), "int32").data,
                               np.ones(2, "float16").data, Bare(np.arange(6.0).reshape(2, 3))],
                         ids=lambda x: type(x).__name__)
def test_a_memoryview_where_the_library_has_no_from_dlpack(x: Any, alone: arraycomm.Group) -> None:
    want = np.asarray(memoryview(x) if not isinstance(x, Bare) else x.x)
    calls: Calls = {**CALLS, "sendrecv": lambda group, x: group.sendrecv(x, 0, 0).array}
    for name, call in calls.items():
        found = call(alone, x)
        assert type(found) is memoryview and not found.readonly, name
        assert np.asarray(found).dtype == want.dtype and np.array_equal(np.asarray(found), want), name


def test_dtypes_may_be_classes(alone: arraycomm.Group) -> None:
    x = Classes(np.arange(3, dtype="float32"))
    assert str(x.dtype) == "<class 'a.library.float32'>"
    found = alone.all_reduce(x)
    assert type(found) is Classes and found.x.tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="cannot hold float16 here and made .*float32"):
        alone.all_reduce(Classes(np.ones(3, "float16")))


def test_a_buffer_where_memoryview_has_no_letter(alone: arraycomm.Group) -> None:
    x: Any = alone.empty(4, "bfloat16", like=b"")
    assert type(x) is Buffer
    np.from_dlpack(Words(x))[:] = np.arange(4).astype(ml_dtypes.bfloat16).view(np.uint16)
    for name, call in CALLS.items():
        found = call(alone, x)
        assert type(found) is Buffer and found.dtype == x.dtype and found.shape == (4,), name
        assert np.from_dlpack(Words(found)).tolist() == np.from_dlpack(Words(x)).tolist(), name


class Words:
    """16-bit words in the memory of a Buffer."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    def __dlpack__(self, **how: Any) -> Any:
        words: Any = (ctypes.c_uint16 * self.buffer.count).from_address(self.buffer.address)
        words.keeps = self.buffer
        return np.frombuffer(words, np.uint16).__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_an_output_without_a_version(alone: arraycomm.Group) -> None:
    """Is written on the caller's word."""
    x = np.full((2, 3), 7, "float32")
    producer = Producer()
    for call in (lambda out: alone.all_reduce(x, out=out), lambda out: alone.broadcast(x, out=out, timeout=60.0),
                 lambda out: alone.all_gather(x, out=out), lambda out: alone.recv(0, out=out)):
        with pytest.raises(ValueError, match=r"DLPack without a version.*arraycomm\.writable"):
            call(producer)
        alone.isend(x, 0)
        producer.data[2:8] = [0.0] * 6
        out = arraycomm.writable(producer)
        found = call(out)
        assert getattr(found, "array", found) is out and list(producer.data) == [0, 1, *[7] * 6]


def test_what_is_known_to_be_read_only_stays_so(alone: arraycomm.Group) -> None:
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    for x, text in ((fixed, "read-only"), (Bare(fixed), "read-only"), (b"abc", "read-only"),
                    (Producer(strides=True), "contiguous"), (jnp.ones(3), "immutable"), (memoryview(b"ab"), "read-only")):
        with pytest.raises(ValueError, match=text):
            arraycomm.writable(x)
    with pytest.raises(TypeError, match="expected an array"):
        arraycomm.writable(5)
    x = np.zeros(3)
    out: Any = arraycomm.writable(x)
    assert alone.all_reduce(np.ones(3), out=out).shape == (3,) and x.tolist() == [1, 1, 1]


def test_gpu_arrays_are_exported_once(cuda: arrays.Cuda, alone: arraycomm.Group) -> None:
    x, other = arrays.asarray(np.ones(4, "float32")), arrays.asarray(np.ones(4, "float32"))
    calls: Calls = {
        **CALLS, "in place": lambda group, x: group.all_reduce(x, out=x),
             "broadcast in place": lambda group, x: group.broadcast(x, out=x),
             "reduce in place": lambda group, x: group.reduce(x, out=x), "empty": lambda group, x: group.empty(3, like=x),
             "reduce_scatter in place": lambda group, x: group.reduce_scatter(x, out=x),
             "out": lambda group, x: group.all_reduce(x, out=other), "isend": lambda group, x: group.isend(x, 0),
             "recv": lambda group, x: group.recv(0, out=x), "sendrecv": lambda group, x: group.sendrecv(x, 0, 0),
             "uneven": lambda group, x: group.all_gather(x, uneven=True)}
    for name, call in calls.items():
        x.asked.clear()
        other.asked.clear()
        call(alone, x)
        assert len(x.asked) == 1 and len(other.asked) == (name == "out"), name


def test_host_arrays_are_exported_once(alone: arraycomm.Group) -> None:
    calls: Calls = {**CALLS, "sendrecv": lambda group, x: group.sendrecv(x, 0, 0)}
    for name, call in calls.items():
        x = Bare(np.ones(4))
        call(alone, x)
        assert x.reads == 1, name

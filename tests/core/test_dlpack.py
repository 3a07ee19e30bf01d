"""From any array to a Buffer and back, library by library."""

from __future__ import annotations

import array
import ctypes
import gc
import os
import subprocess
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arraycomm.core.dlpack import allocate, pack, resolve, resolve_out, wrap
from arraycomm.core.types import DType

DTYPES = list(DType)
TORCH_DTYPES = [d for d in DTYPES if hasattr(torch, d.label)]
SUPPORTED = "supported are bool, int8, .*float8_e8m0fnu"


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype.label, dtype.label))


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def sample(dtype: DType, shape: tuple[int, ...] = (2, 3)) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(numpy_dtype(dtype))


# ---- NumPy ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy(dtype: DType) -> None:
    x = sample(dtype)
    b = resolve(x)
    assert (b.address, b.count, b.dtype, b.shape) == (x.ctypes.data, 6, dtype, (2, 3))
    assert (b.device_type, b.device_index, b.readonly) == (1, 0, False) and b.owner is x
    y = wrap(pack(x), x)
    assert type(y) is np.ndarray and y.dtype == x.dtype and y.flags.writeable and y.flags.c_contiguous
    assert bits(y) == bits(x) and y.ctypes.data != x.ctypes.data


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
def test_numpy_small_shapes(shape: tuple[int, ...]) -> None:
    x = np.ones(shape)
    assert resolve(x).shape == shape and resolve(x).count == x.size
    assert wrap(pack(x), x).shape == shape


def strided(draw: Any) -> np.ndarray[Any, Any]:
    base = np.arange(2 * 3 * 4 * 5, dtype=draw(st.sampled_from(["i1", "f2", "f4", "f8", "c16"]))).reshape(2, 3, 4, 5)
    steps = [draw(st.sampled_from([1, 2, -1, -2])) for _ in range(4)]
    x = base[tuple(slice(None, None, step) for step in steps)].transpose(draw(st.permutations(range(4))))
    if draw(st.booleans()):
        x = np.broadcast_to(x[:, :1], x.shape)
    return x if draw(st.booleans()) else x[:, None]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_strided_numpy_is_packed(data: st.DataObject) -> None:
    x = strided(data.draw)
    assert bits(memoryview(resolve(x))) == bits(x)
    assert np.array_equal(wrap(pack(x), x), x)


def test_field_of_a_structured_array_is_packed() -> None:
    x = np.zeros(4, "i1,f8")["f1"]
    x[:] = range(4)
    assert np.array_equal(wrap(pack(x), x), x)


def test_large_strided_array_is_packed() -> None:
    x = np.arange(1 << 18, dtype=np.int32).reshape(512, 512).T
    assert np.array_equal(wrap(pack(x), x), x)


def test_copy_of_a_strided_input_cannot_be_written() -> None:
    assert resolve(np.ones((3, 3)).T).readonly
    assert not pack(np.ones((3, 3)).T).readonly


@pytest.mark.parametrize(
    ("x", "name"),
    [
        (np.array(["a"]), "<U1"),
        (np.array([None]), "object"),
        (np.array([1], "M8[ns]"), r"datetime64\[ns\]"),
        (np.zeros(2, "f4,i4"), "f0"),
        (np.ones(2, np.longdouble), "float128" if np.dtype(np.longdouble).itemsize == 16 else "longdouble"),
        (np.ones(2, ml_dtypes.int4), "int4"),
        (np.ones(2, ml_dtypes.float4_e2m1fn), "float4_e2m1fn"),
    ],
    ids=str,
)
def test_numpy_dtypes_without_counterpart(x: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}.* is not supported; {SUPPORTED}"):
        resolve(x)


def test_foreign_byte_order() -> None:
    foreign = ">f4" if sys.byteorder == "little" else "<f4"
    with pytest.raises(TypeError, match=f"dtype {foreign} has foreign byte order.*astype.'float32'"):
        resolve(np.ones(3, foreign))


def test_masked_array() -> None:
    with pytest.raises(TypeError, match="would lose its mask; pass x.filled"):
        resolve(np.ma.masked_array([1.0, 2.0]))


def test_numpy_scalar_and_subclass() -> None:
    assert resolve(np.float32(3)).shape == () and resolve(np.float32(3)).readonly
    record = np.ones(2).view(np.recarray)
    assert resolve(record).address == record.ctypes.data


def test_unwritable_outputs() -> None:
    x = np.ones((3, 3))
    assert resolve_out(x).address == x.ctypes.data
    with pytest.raises(ValueError, match="output is not C-contiguous"):
        resolve_out(x.T)
    x.flags.writeable = False
    assert resolve(x).readonly
    with pytest.raises(ValueError, match="numpy.ndarray is read-only; pass a writable array, or leave out= away"):
        resolve_out(x)


# ---- torch ----


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_torch(dtype: DType) -> None:
    x = torch.zeros((2, 3), dtype=getattr(torch, dtype.label))
    x.view(torch.uint8)[:] = 1
    b = resolve(x)
    assert (b.address, b.count, b.dtype, b.shape, b.readonly) == (x.data_ptr(), 6, dtype, (2, 3), False)
    assert b.owner is x and resolve_out(x).address == x.data_ptr()
    p = pack(x)
    y = wrap(p, x)
    assert y.dtype == x.dtype and y.shape == x.shape and y.data_ptr() == p.address
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))
    y.view(torch.uint8)[0, 0] = 3
    assert (x.view(torch.uint8) == 1).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_torch_small_shapes(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    assert resolve(x).shape == shape and tuple(wrap(pack(x), x).shape) == shape


def test_torch_strided() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)[::2].expand(2, 2, 3)
    assert torch.equal(wrap(pack(x), x), x)
    with pytest.raises(ValueError, match="not C-contiguous"):
        resolve_out(x)


@pytest.mark.parametrize("lazy", [torch.conj, lambda c: c.conj().imag, lambda c: c.conj().imag[:1]])
def test_torch_lazy_bits(lazy: Any) -> None:
    x = lazy(torch.tensor([1 + 2j, 3 - 1j]))
    assert torch.equal(wrap(pack(x), x), x.resolve_conj().resolve_neg())
    assert resolve(x).readonly
    with pytest.raises(ValueError, match="lazy conjugate"):
        resolve_out(x)


def test_torch_with_gradient() -> None:
    x = torch.nn.Parameter(torch.ones(3))
    assert resolve(x).address == x.data_ptr() == resolve_out(x).address
    y = wrap(pack(x), x)
    assert type(y) is torch.Tensor and not y.requires_grad


@pytest.mark.parametrize("name", ["int1", "int4", "uint4", "uint7", "complex32", "float4_e2m1fn_x2"])
@pytest.mark.filterwarnings("ignore")
def test_torch_dtypes_without_counterpart(name: str) -> None:
    with pytest.raises(TypeError, match=f"torch.{name} is not supported; {SUPPORTED}"):
        resolve(torch.empty(4, dtype=getattr(torch, name)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: torch.empty(3, device="meta"), "meta tensor has no memory"),
        (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo.*to_dense"),
        (lambda: torch.eye(3).to_sparse_csr(), "layout torch.sparse_csr.*to_dense"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8), "qint8.*int_repr"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensors.*unbind"),
    ],
)
def test_torch_tensors_without_memory(make: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        resolve(make())


# ---- JAX ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax(dtype: DType) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(sample(dtype))
        b = resolve(x)
        assert (b.address, b.count, b.dtype, b.shape) == (x.unsafe_buffer_pointer(), 6, dtype, (2, 3))
        assert b.readonly and b.device_type == 1
        p = pack(x)
        y = wrap(p, x)
        assert isinstance(y, jax.Array) and y.dtype == x.dtype and y.unsafe_buffer_pointer() == p.address
        assert bits(y) == bits(x)
        with pytest.raises(ValueError, match="JAX arrays are immutable.*leave out= away"):
            resolve_out(x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_jax_small_shapes(shape: tuple[int, ...]) -> None:
    x = jnp.ones(shape)
    assert resolve(x).shape == shape and wrap(pack(x), x).shape == shape


def test_jax_value_is_waited_for() -> None:
    x = jnp.full((700, 700), 0.5)
    slow = jax.jit(lambda v: jax.lax.fori_loop(0, 5, lambda _, m: m @ v / 350, v))
    b = resolve(slow(x))
    got = np.asarray(memoryview(b)).copy()
    assert np.allclose(got, np.asarray(slow(x)))


def test_jax_array_cannot_be_donated_while_held() -> None:
    x = jnp.arange(1000.0)
    b = resolve(x)
    y = jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    y.block_until_ready()
    assert np.asarray(memoryview(b)).tolist() == list(range(1000))


def test_jax_arrays_without_a_value() -> None:
    deleted = jnp.ones(3)
    deleted.delete()
    with pytest.raises(TypeError, match="deleted or donated"):
        resolve(deleted)
    with pytest.raises(TypeError, match="tracer has no value.*io_callback"):
        jax.jit(lambda v: resolve(v))(jnp.ones(3))
    with pytest.raises(TypeError, match="key_data"):
        resolve(jax.random.key(0))
    with pytest.raises(TypeError, match=f"int4 is not supported; {SUPPORTED}"):
        resolve(jnp.ones(4, jnp.int4))


def test_jax_without_64_bits() -> None:
    with jax.enable_x64(False), pytest.raises(TypeError, match="cannot hold int64 here.*jax_enable_x64"):
        wrap(allocate((3,), DType.INT64), jnp.ones(3))


MANY_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from arraycomm.core.dlpack import pack, resolve, wrap
mesh = jax.make_mesh((2,), ("x",))
for spec in (PartitionSpec("x"), PartitionSpec()):
    try:
        resolve(jax.device_put(jnp.arange(8.0), NamedSharding(mesh, spec)))
    except TypeError as error:
        assert "spread over 2 devices; pass one shard" in str(error), error
    else:
        raise AssertionError("a sharded array was read")
for dtype in (jnp.float32, jnp.bfloat16):
    x = jax.device_put(jnp.arange(8.0).astype(dtype), jax.devices()[1])
    assert (resolve(x).device_type, resolve(x).device_index) == (1, 0)
    y = wrap(pack(x), x)
    assert y.device == x.device and (y == x).all()
"""


def test_jax_with_several_devices() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", MANY_DEVICES], env=environment, check=True, timeout=60)


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
    assert wrap(allocate((2, 0), DType.FLOAT32), b"").shape == (2, 0)
    with pytest.raises(BufferError, match="no letter for bfloat16"):
        wrap(allocate((2,), DType.BFLOAT16), b"")


@pytest.mark.parametrize("x", [3, 2.5, [1, 2], None, "text", {}, object()], ids=repr)
def test_not_an_array(x: object) -> None:
    with pytest.raises(TypeError, match=f"expected an array .*, got {type(x).__name__}; for numbers use numpy.asarray"):
        resolve(x)


# ---- other producers ----


class Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack before 1.0."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


_destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
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
    assert memoryview(b).tolist() == [[2, 3, 4], [5, 6, 7]]
    assert b.readonly and x.freed == 0
    del b
    assert x.freed == 1
    with pytest.raises(ValueError, match="Producer is read-only"):
        resolve_out(x)
    assert x.freed == 2
    assert isinstance(wrap(pack(x), x), memoryview)


def test_legacy_capsule_with_strides() -> None:
    x = Producer(strides=True)
    assert memoryview(resolve(x)).tolist() == [[2, 4, 6], [3, 5, 7]]
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
    with pytest.raises(TypeError, match="dtype unknown is not supported"):
        resolve(Producer(code=17))
    with pytest.raises(TypeError, match="no DLPack tensor"):
        resolve(Producer(name=b"something"))
    with pytest.raises(TypeError, match="Producer has no memory of its own"):
        resolve(Producer(null=True))


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


# ---- what lasts ----


EVERY_KIND = [np.ones(4), np.ones((4, 4)).T, torch.ones(4), torch.ones(4, 4).T, jnp.ones(4), jnp.ones(4, jnp.bfloat16),
              bytearray(16), np.ones(4, ml_dtypes.bfloat16)]  # fmt: skip


@pytest.mark.parametrize("x", EVERY_KIND, ids=lambda x: f"{type(x).__module__}-{getattr(x, 'dtype', '')}")
def test_nothing_leaks(x: Any) -> None:
    template = np.empty(0) if isinstance(x, jax.Array) else x  # 10,000 times through JAX's own importer takes long

    def run() -> None:
        for _ in range(10_000):
            resolve(x)
            wrap(pack(x), template)

    run()
    gc.collect()
    references, blocks = sys.getrefcount(x), sys.getallocatedblocks()
    run()
    gc.collect()
    assert sys.getrefcount(x) == references
    assert sys.getallocatedblocks() - blocks < 200


def test_refusals_do_not_leak() -> None:
    x = np.ones(3, ">f4")

    def run() -> None:
        for _ in range(2_000):
            for function in (resolve, resolve_out):
                with pytest.raises((TypeError, ValueError)):
                    function(x)

    run()
    gc.collect()
    references, blocks = sys.getrefcount(x), sys.getallocatedblocks()
    run()
    gc.collect()
    assert sys.getrefcount(x) == references and sys.getallocatedblocks() - blocks < 200


def test_many_threads() -> None:
    wrong: list[object] = []

    def work() -> None:
        for i in range(500):
            x = EVERY_KIND[i % 5]
            if bits(memoryview(pack(x))) != bits(x) or bits(memoryview(resolve(x))) != bits(x):
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_importing_loads_no_framework() -> None:
    code = (
        "import sys; import arraycomm.core.dlpack as d; d.resolve(b'abc'); "
        "print(sorted({'numpy', 'torch', 'jax', 'ml_dtypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

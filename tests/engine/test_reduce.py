"""The reduction kernels against NumPy and ml_dtypes, through a library compiled from the engine's reduce*.c."""

from __future__ import annotations

import ctypes
import platform
import shutil
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from arraycomm.core.arrays.types import OPS, DType

from .compiling import COMPILER, HERE, OPTIMISED, compile_kernels, compile_one, compile_with

NARROW = [dtype for dtype in DType if dtype in (DType.FLOAT16, DType.BFLOAT16) or dtype >= DType.FLOAT8_E3M4]
FLOAT8 = [dtype for dtype in DType if dtype >= DType.FLOAT8_E3M4]
INTEGERS = [dtype for dtype in DType if DType.INT8 <= dtype <= DType.UINT64]
LEVELS = ["neon"] if platform.machine() == "aarch64" else ["portable", "avx2", "avx512", "avx512bf16"]
PREMUL_SUM = 8

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C compiler found")


class Reduction(ctypes.Structure):
    """`struct reduction` of reduce.h."""

    _fields_ = [
        ("dtype", ctypes.c_int),
        ("redop", ctypes.c_int),
        ("factor", ctypes.c_double),
        ("ranks", ctypes.c_int),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("reduce")
    target = folder / "reduce.so"
    functions = compile_one(HERE / "reduce_library.c", folder / "functions.o", OPTIMISED)
    compile_with([COMPILER, "-shared", str(functions), *map(str, compile_kernels(folder)), "-o", str(target)])
    loaded = ctypes.CDLL(str(target))
    loaded.library_level.restype = ctypes.c_char_p
    return loaded


@pytest.fixture(params=LEVELS)
def kernels(library: ctypes.CDLL, request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    if library.library_force(request.param.encode()):
        pytest.skip(f"this CPU has no {request.param} kernels")
    assert library.library_level() == request.param.encode()
    yield library
    library.library_force(None)


def numpy_type(dtype: DType) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype.label, dtype.label))


def reduced(
    kernels: ctypes.CDLL, inputs: list[NDArray[Any]], dtype: DType, op: str, factor: float = 0.0, ranks: int = 0
) -> NDArray[Any]:
    """library_reduce over the inputs."""
    out = np.empty_like(inputs[0])
    code = PREMUL_SUM if op == "premul_sum" else OPS[op].code
    reduction = Reduction(dtype, code, factor, ranks or len(inputs))
    pointers = (ctypes.c_void_p * len(inputs))(*[x.ctypes.data for x in inputs])
    kernels.library_reduce(
        ctypes.byref(reduction), ctypes.c_void_p(out.ctypes.data), pointers, len(inputs), ctypes.c_uint64(out.size)
    )
    return out


def convert(kernels: ctypes.CDLL, function: str, x: NDArray[Any], dtype: DType, to: np.dtype) -> NDArray[Any]:
    """library_begin (widening) or library_finish (narrowing) of x."""
    out = np.empty(x.shape, to)
    reduction = Reduction(dtype, OPS["sum"].code, 0.0, 1)
    getattr(kernels, function)(
        ctypes.byref(reduction),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_void_p(x.ctypes.data),
        ctypes.c_uint64(x.size),
    )
    return out


def assert_same(got: NDArray[Any], want: NDArray[Any]) -> None:
    """Equal bits, except that any NaN equals any NaN."""
    bits = np.dtype(f"u{got.itemsize}")
    wrong = (got.view(bits) != want.view(bits)) & ~(np.isnan(got) & np.isnan(want))
    assert not wrong.any(), f"{wrong.sum()} differ, first {got[wrong][:5]} should be {want[wrong][:5]}"


def every_code(dtype: DType) -> NDArray[Any]:
    bits = np.dtype(f"u{dtype.itemsize}")
    return np.arange(256**dtype.itemsize).astype(bits).view(numpy_type(dtype))


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.label)
def test_widening_every_code(kernels: ctypes.CDLL, dtype: DType) -> None:
    x = every_code(dtype)
    assert_same(convert(kernels, "library_begin", x, dtype, np.dtype("f4")), x.astype(np.float32))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.label)
def test_narrowing_rounds_as_ml_dtypes(kernels: ctypes.CDLL, dtype: DType) -> None:
    """All upper halves of a float32 with lower halves around the ties, then random ones."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = np.concatenate([(upper[:, None] | lower).ravel(), np.random.default_rng(7).integers(0, 1 << 32, 1 << 18)])
    if dtype is DType.FLOAT16:  # its ties lie below bit 13
        bits = np.concatenate([bits, (np.arange(1 << 19, dtype=np.uint32) << 13) | 0x1000])
    x = bits.astype(np.uint32).view(np.float32)
    assert_same(convert(kernels, "library_finish", x, dtype, numpy_type(dtype)), x.astype(numpy_type(dtype)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", ["sum", "product", "min", "max"])
@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda dtype: dtype.label)
def test_float8_every_pair(kernels: ctypes.CDLL, dtype: DType, op: str) -> None:
    codes = every_code(dtype)
    a, b = (x.ravel() for x in np.meshgrid(codes, codes, indexing="ij"))
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    if op == "min":
        want = np.where(wide_a == wide_b, np.where(np.signbit(wide_a), wide_a, wide_b), np.minimum(wide_a, wide_b))
    elif op == "max":
        want = np.where(wide_a == wide_b, np.where(np.signbit(wide_a), wide_b, wide_a), np.maximum(wide_a, wide_b))
    else:
        want = wide_a + wide_b if op == "sum" else wide_a * wide_b
    assert_same(reduced(kernels, [a, b], dtype, op), want.astype(numpy_type(dtype)))


def folded(op: str, inputs: list[NDArray[Any]]) -> NDArray[Any]:
    """The reference: from left to right in the inputs' own type, avg still undivided."""
    function = {
        "sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }[op]
    total: NDArray[Any] = inputs[0].copy()
    for x in inputs[1:]:
        total = function(total, x)
    return total


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", ["sum", "product", "min", "max", "avg"])
@pytest.mark.parametrize("dtype", [*NARROW, DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.label)
def test_floats(kernels: ctypes.CDLL, dtype: DType, op: str) -> None:
    """Accumulated in float32 where narrower, in rank order, rounded once."""
    rng = np.random.default_rng(dtype)
    for n in (1, 2, 3, 4, 5, 8, 9, 13):
        inputs = [np.abs(rng.normal(1, 0.7, 2500)).astype(numpy_type(dtype)) for _ in range(n)]
        wide = np.float64 if dtype is DType.FLOAT64 else np.float32
        total = folded(op, [x.astype(wide) for x in inputs])
        want = (total / wide(n) if op == "avg" else total).astype(numpy_type(dtype))
        assert_same(reduced(kernels, inputs, dtype, op), want)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", ["sum", "product", "min", "max", "band", "bor", "bxor", "avg"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.label)
def test_integers(kernels: ctypes.CDLL, dtype: DType, op: str) -> None:
    rng = np.random.default_rng(dtype)
    for n in (1, 2, 3, 4, 6, 8, 11):
        inputs = [rng.integers(0, 256, 3001 * dtype.itemsize, np.uint8).view(numpy_type(dtype)) for _ in range(n)]
        want = folded(op, inputs)
        if op == "avg":  # in Python's integers: NumPy's division rounds down
            want = np.array([(abs(int(x)) // n) * (-1 if x < 0 else 1) for x in want], numpy_type(dtype))
        got = reduced(kernels, inputs, dtype, op)
        assert np.array_equal(got, want)


@pytest.mark.parametrize("factor", [3.0, -2.0, 0.37, -1.9, 2.0**40])
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.label)
def test_integers_times_a_factor(kernels: ctypes.CDLL, dtype: DType, factor: float) -> None:
    info = np.iinfo(numpy_type(dtype))
    rng = np.random.default_rng(dtype)
    inputs = [rng.integers(info.min, info.max, 777, numpy_type(dtype), endpoint=True) for _ in range(3)]

    def times(x: int) -> int:
        return x * int(factor) if factor.is_integer() else min(max(int(float(x) * factor), info.min), info.max)

    totals = [sum(times(int(x)) for x in column) for column in zip(*inputs, strict=True)]
    wrapped = [(total - info.min) % (1 << info.bits) + info.min for total in totals]
    got = reduced(kernels, inputs, dtype, "premul_sum", factor)
    assert got.tolist() == wrapped


@pytest.mark.parametrize("dtype", [DType.COMPLEX64, DType.COMPLEX128], ids=lambda dtype: dtype.label)
def test_complex(kernels: ctypes.CDLL, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    n = 5
    inputs = [(rng.normal(size=1500) + 1j * rng.normal(size=1500)).astype(numpy_type(dtype)) for _ in range(n)]
    total = folded("sum", inputs)
    assert np.array_equal(reduced(kernels, inputs, dtype, "sum"), total)
    parts = total.view(total.real.dtype) / total.real.dtype.type(n)
    assert np.array_equal(reduced(kernels, inputs, dtype, "avg").view(parts.dtype), parts)
    assert np.allclose(reduced(kernels, inputs, dtype, "product"), folded("product", inputs), rtol=1e-5)
    scaled = [(x.view(total.real.dtype) * total.real.dtype.type(0.3)).view(x.dtype) for x in inputs]
    assert np.array_equal(reduced(kernels, inputs, dtype, "premul_sum", 0.3), folded("sum", scaled))


@pytest.mark.parametrize("dtype", [*NARROW[:-1], DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.label)
def test_floats_times_a_factor(kernels: ctypes.CDLL, dtype: DType) -> None:
    """The factor is rounded to float32 where the sum is one, and the products are not rounded to the narrow type."""
    rng = np.random.default_rng(5)
    inputs = [rng.normal(size=1500).astype(numpy_type(dtype)) for _ in range(6)]
    wide = np.float64 if dtype is DType.FLOAT64 else np.float32
    want = folded("sum", [x.astype(wide) * wide(0.1) for x in inputs]).astype(numpy_type(dtype))
    assert_same(reduced(kernels, inputs, dtype, "premul_sum", 0.1), want)

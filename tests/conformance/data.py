"""Arrays of every framework, and what the operations must make of them, by NumPy alone.

The reference adds in rank order, each step in the type that the semantics name (docs/reference/reductions.md), so that it gives
the exact bits that the rank-order algorithms must give.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from arraycomm.core.arrays.types import DType

from . import libraries

FRAMEWORKS = ("numpy", "jax", "torch")
CUDA = ("cuda", "frozen", "cupy")  # arrays on a device of the stand-in for CUDA's runtime (tests/standin/arrays.py)
OPS = ("sum", "product", "min", "max", "band", "bor", "bxor", "avg", "premul_sum")

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REALS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
FLOAT8 = tuple(dtype.label for dtype in DType if dtype.label.startswith("float8"))
DTYPES = ("bool", *INTEGERS, *REALS, *COMPLEX, *FLOAT8)
NARROW = ("float16", "bfloat16", *FLOAT8)
_NOT_IN_TORCH = ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz")


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name.startswith(("float8", "bfloat")) else name)


def supports(framework: str, dtype: str) -> bool:
    if framework in libraries.DTYPES:
        return dtype in libraries.DTYPES[framework]
    return framework != "torch" or dtype not in _NOT_IN_TORCH


def defined(op: str, dtype: str) -> bool:
    if dtype == "bool":
        return op not in ("avg", "premul_sum")
    if op in ("band", "bor", "bxor"):
        return dtype in INTEGERS
    return not (op in ("min", "max") and dtype in COMPLEX)


# ---- from NumPy to a framework and back ----

def make(framework: str, array: np.ndarray[Any, Any]) -> Any:
    """A new array of the framework with these elements; nothing is shared."""
    if framework == "numpy":
        return array.copy()
    if framework == "jax":
        return _jax().device_put(array.copy())  # not jnp.array(): it compiles a copy for each shape and dtype in each process
    if framework in CUDA:
        library = _standin(framework)
        return library.asarray(array, kind=_KINDS[framework])
    if framework in libraries.DTYPES:
        return libraries.make(framework, array)
    import torch

    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array.copy().view(f"i{array.itemsize}")).view(getattr(torch, array.dtype.name))


def back(array: Any) -> np.ndarray[Any, Any]:
    """The elements as NumPy has them."""
    if framework_of(array) in CUDA:
        return np.asarray(array.numpy())
    if library := libraries.library_of(array):
        return libraries.back(library, array)
    if framework_of(array) != "torch":
        return np.asarray(array)
    import torch

    name = str(array.dtype).removeprefix("torch.")
    if numpy_dtype(name).isbuiltin == 1:
        return np.asarray(array.detach().contiguous().numpy())
    bits = array.contiguous().view(torch.int8 if array.element_size() == 1 else torch.int16)
    return np.asarray(bits.numpy()).view(numpy_dtype(name))


def framework_of(array: Any) -> str:
    name = type(array).__module__.split(".")[0]
    if name == "tests":
        return "frozen" if array.immutable else "cuda"
    return "jax" if name in ("jax", "jaxlib") else libraries.library_of(array) or name


_KINDS: dict[str, type] = {}
_for_good = contextlib.ExitStack()


def _standin(framework: str) -> Any:
    """The test's own library of arrays on CUDA devices; under CuPy's name from the first such array on."""
    from tests.standin import arrays

    if not _KINDS:
        _KINDS.update(cuda=arrays.Array, frozen=arrays.Frozen)
    if framework == "cupy" and framework not in _KINDS:
        _KINDS["cupy"] = _for_good.enter_context(arrays.as_cupy())
    return arrays


@functools.cache
def _jax() -> Any:
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax


# ---- contents ----

@functools.lru_cache(maxsize=256)
def _contents(dtype: str, shape: tuple[int, ...], rank: int, seed: int, rough: bool) -> np.ndarray[Any, Any]:
    random = np.random.default_rng([seed, rank, *dtype.encode(), *shape])
    if dtype == "bool":
        made = random.integers(0, 2, shape)
    elif dtype in INTEGERS:
        info = np.iinfo(dtype)
        low, high = (info.min, info.max) if rough else (max(info.min, -9), 9)
        made = random.integers(low, high, shape, dtype=dtype, endpoint=True)
    elif dtype in COMPLEX:
        parts = random.standard_normal((2, *shape)) if rough else random.integers(-3, 4, (2, *shape))
        made = parts[0] + 1j * parts[1]
    elif dtype == "float8_e8m0fnu":
        made = random.choice([0.5, 1, 2, 4], shape)
    elif rough:
        made = np.ldexp(random.standard_normal(shape), random.integers(-3, 4, shape, dtype=np.int32))
    else:
        made = random.choice([-1, -0.5, 0, 0.5, 1, 1], shape)
    array = np.asarray(made).astype(numpy_dtype(dtype)).reshape(shape)
    array.setflags(write=False)
    return array


def contents(dtype: str, shape: tuple[int, ...], rank: int, seed: int = 0, rough: bool = False) -> np.ndarray[Any, Any]:
    """What `rank` gives. Without `rough`, numbers whose sums and products are exact in every order (avg rounds once)."""
    return _contents(dtype, tuple(shape), rank, seed, rough)


# ---- the reductions ----

def reduced(op: str, inputs: list[np.ndarray[Any, Any]], factor: float = 1.0) -> np.ndarray[Any, Any]:
    """The reduction in rank order, with the bits that docs/reference/reductions.md promises."""
    dtype = inputs[0].dtype
    with np.errstate(all="ignore"):
        if dtype.kind == "b":
            return _logical(op, inputs)
        narrow = dtype.name in NARROW
        wide = [array.astype(np.float32) if narrow else array for array in inputs]
        if op == "premul_sum":
            wide = [_scaled(array, factor) for array in wide]
        total = functools.reduce(_STEPS[op], wide)
        if op == "avg":
            total = _divided(total, len(inputs))
        return np.asarray(total).astype(dtype)


def _logical(op: str, inputs: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    step = {"bxor": np.logical_xor}.get(op, np.logical_or if op in ("sum", "max", "bor") else np.logical_and)
    return np.asarray(functools.reduce(step, inputs))


def _scaled(array: np.ndarray[Any, Any], factor: float) -> np.ndarray[Any, Any]:
    if array.dtype.kind in "iu":
        if factor == int(factor):
            return np.asarray(array * np.array(int(factor) & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(array.dtype))
        info = np.iinfo(array.dtype)
        exact = np.trunc(array.astype(np.float64) * factor)
        whole = [min(max(int(x), info.min), info.max) for x in exact.ravel()]
        return np.asarray(np.array(whole, array.dtype).reshape(array.shape))
    real = array.real.dtype.type(factor)
    return _parts(array * real) if array.dtype.kind != "c" else _parts(array.real * real, array.imag * real)


def _divided(total: np.ndarray[Any, Any], ranks: int) -> np.ndarray[Any, Any]:
    if total.dtype.kind == "u":
        return np.asarray(total // total.dtype.type(ranks))
    if total.dtype.kind == "i":
        quotients = [abs(int(x)) // ranks * (-1 if x < 0 else 1) for x in total.ravel()]
        return np.asarray(np.array(quotients, total.dtype).reshape(total.shape))
    by = total.real.dtype.type(ranks)
    return _parts(total / by) if total.dtype.kind != "c" else _parts(total.real / by, total.imag / by)


def _parts(real: Any, imaginary: Any = None) -> np.ndarray[Any, Any]:
    if imaginary is None:
        return np.asarray(real)
    made = np.empty(np.shape(real), np.complex64 if real.dtype == np.float32 else np.complex128)
    made.real, made.imag = real, imaginary
    return made


def _product(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if a.dtype.kind != "c":
        return np.asarray(a * b)
    # Written out, because NumPy's own uses fused multiply-add where the CPU has it.
    return _parts(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def _least(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if a.dtype.kind != "f":
        return np.asarray(np.minimum(a, b))
    zeros = (a == 0) & (b == 0) & np.signbit(a)
    return np.where(np.isnan(a) | np.isnan(b), a.dtype.type(math.nan), np.where((a < b) | zeros, a, b))


def _greatest(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.maximum(a, b)) if a.dtype.kind != "f" else -_least(-a, -b)


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
          "sum": np.add, "avg": np.add, "premul_sum": np.add, "product": _product, "min": _least, "max": _greatest,
          "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


# ---- comparison ----

def bits(array: np.ndarray[Any, Any]) -> bytes:
    """The elements' bits, every NaN being the same one: which of them a CPU makes is nobody's promise."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "c":
        array = array.view(array.real.dtype)
    if array.dtype.kind == "f" or array.dtype.name in NARROW:
        array = np.where(np.isnan(array), np.array(math.nan).astype(array.dtype), array)
    return array.tobytes()


def difference(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], tolerance: float = 0.0) -> str | None:
    """What is wrong, or None. `tolerance` is relative to the largest expected magnitude; 0 compares bits."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"got {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}"
    if bits(got) == bits(want):
        return None
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    if tolerance:
        a, b = got.astype(wide), want.astype(wide)
        if np.all(np.abs(a - b) <= tolerance * max(1.0, float(np.max(np.abs(b))))):
            return None
    unlike = [i for i in range(got.size) if bits(got.reshape(-1)[i]) != bits(want.reshape(-1)[i])]
    where = unlike[0]
    return (f"{len(unlike)} of {got.size} elements differ, first at {np.unravel_index(where, got.shape) if got.shape else ()}: "
            f"got {got.reshape(-1)[where]!r}, want {want.reshape(-1)[where]!r}")

"""The device's reductions, over the stand-in's interpreter of PTX: bit for bit what the engine makes of the same arrays."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from arraycomm.core.arrays.dlpack import resolve
from arraycomm.core.arrays.types import OPS, DType, ReduceOp, premul_sum
from arraycomm.core.base.errors import DistBackendError
from arraycomm.core.gpu import kernels
from arraycomm.core.gpu.runtime import runtime
from arraycomm.core.group.local import reduce_into
from tests.standin import arrays

OPERATIONS = [*dict.fromkeys(OPS.values()), premul_sum(0.1), premul_sum(-3)]
PAIRS = [(dtype, op) for dtype in DType for op in OPERATIONS if kernels.reduces(dtype, op, 3)]
FLOATS = {DType.FLOAT16: np.uint16, DType.BFLOAT16: np.uint16, DType.FLOAT32: np.uint32, DType.FLOAT64: np.uint64}
PARTS = {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}
SUM, BEHIND = OPS["sum"], 64  # bytes behind each array, which nobody may write

Numbers = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("cuda")


# ---- inputs ----


def numpy_type(dtype: DType) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype.label, dtype.label))


def special(dtype: DType) -> Numbers:
    """What rounds, overflows, ties or compares in its own way, as far as one number can."""
    if dtype is DType.BOOL:
        return np.array([0, 1, 2, 3, 128, 255], np.uint8).view(np.bool_)
    if dtype not in FLOATS:
        info = np.iinfo(numpy_type(dtype))
        near = [0, 1, 2, 3, 7, 100, info.max // 2, info.max // 2 + 1, info.max - 1, info.max]
        return np.array([*near, *(-x for x in near if info.min and x)] + [info.min], numpy_type(dtype))
    kind, bits = ml_dtypes.finfo(numpy_type(dtype)), FLOATS[dtype]
    greatest, unit, tiny = float(kind.max), float(kind.eps), float(kind.smallest_subnormal)
    root = 2.0 ** (int(np.log2(tiny)) // 2)  # whose products end among the subnormals, or half a step beside them
    plain = [0, 1, 1 + unit, unit / 2, 3, 0.1, 7, greatest, 2.0 ** (kind.maxexp - 1) * unit / 2, float(kind.tiny), tiny, 3 * tiny,
             root, root / 2, 1.5 * root, np.inf]
    found = np.array([*plain, *(-x for x in plain)]).astype(numpy_type(dtype))
    quiet = bits(np.array(np.inf, numpy_type(dtype)).view(bits) | (1 << (kind.nmant - 1)))
    codes = [quiet, quiet | bits(3) | (bits(1) << bits(kind.bits - 1)), quiet - bits((1 << (kind.nmant - 1)) - 1)]
    return np.concatenate([found, np.array(codes, bits).view(numpy_type(dtype))])  # and NaN: plain, with a payload, signalling


def given(dtype: DType, ranks: int, count: int) -> list[Numbers]:
    """Every special value against every other as far as there is room, else whatever bits, and numbers near each other."""
    if dtype in PARTS:
        return [x.view(numpy_type(dtype)) for x in given(PARTS[dtype], ranks, 2 * count)]
    found, chosen, kind = [], special(dtype), numpy_type(dtype)
    pairs = np.random.default_rng(5).permutation(len(chosen) ** 2)[: 3 * count // 4]  # the same for all ranks
    for rank in range(ranks):
        chance = np.random.default_rng([dtype, rank])
        x = chance.integers(0, 256, count * kind.itemsize, np.uint8).view(kind)
        if dtype in FLOATS:
            x[count - count // 8 :] = chance.normal(1, 0.7, count // 8).astype(kind)
        x[: len(pairs)] = chosen[[pairs // len(chosen), pairs % len(chosen), pairs * 7 % len(chosen)][rank]]
        found.append(x)
    return found


# ---- results ----


def on_host(op: ReduceOp, inputs: list[Numbers]) -> Numbers:
    """By the engine. Of a single array it copies every NaN as it is, where the kernels have one NaN."""
    out = np.empty_like(inputs[0])
    reduce_into(resolve(out), [resolve(x) for x in inputs], op)
    if len(inputs) == 1 and out.dtype.kind not in "biu":
        parts = out if out.dtype.kind != "c" else out.view(out.real.dtype)
        with np.errstate(invalid="ignore"):  # of those that signal
            parts[np.isnan(parts)] = np.nan
    return out


def seen(address: int, nbytes: int) -> Numbers:
    there: Any = (ctypes.c_uint8 * nbytes).from_address(arrays.cuda().tell("standin_reach", address, nbytes))
    return np.frombuffer(there, np.uint8)


def on_device(dtype: DType, op: ReduceOp, inputs: list[Numbers], to: int = -1) -> Numbers:
    """to: the input that is written over; -1: none."""
    cuda, nbytes = runtime(), inputs[0].nbytes
    addresses = [cuda.malloc(nbytes + BEHIND, 0) for _ in (*inputs, None)]
    try:
        for address, x in zip(addresses, [*inputs, np.zeros_like(inputs[0])], strict=True):
            seen(address, nbytes + BEHIND)[:] = np.append(x.view(np.uint8), np.full(BEHIND, 0x5A, np.uint8))
        kernels.Kernels(cuda).reduce(addresses[to], addresses[:-1], inputs[0].size, dtype, op, arrays.LEGACY, 0)
        cuda.synchronize(arrays.LEGACY, 0)
        after = [seen(address, nbytes + BEHIND).copy() for address in addresses]
    finally:
        for address in addresses:
            cuda.free(address)
    assert all((x[nbytes:] == 0x5A).all() for x in after), "written behind the end"
    kept = [i for i in range(len(inputs)) if i != to]
    assert all(after[i][:nbytes].tobytes() == inputs[i].tobytes() for i in kept), "an input was written"
    return after[to][:nbytes].view(inputs[0].dtype)


def check(dtype: DType, op: ReduceOp, inputs: list[Numbers], to: int = -1) -> None:
    want, got = on_host(op, inputs), on_device(dtype, op, inputs, to)
    codes = [x.view(np.uint8).reshape(x.size, -1) for x in (got, want)]
    wrong = np.flatnonzero((codes[0] != codes[1]).any(1))
    what = [f"{[x[i] for x in inputs]}: got {got[i]!r} = {codes[0][i][::-1].tobytes().hex()}, want {want[i]!r} = "
            f"{codes[1][i][::-1].tobytes().hex()}" for i in wrong[:5]]
    assert not what, f"{len(wrong)} of {len(got)} elements of {len(inputs)} ranks: " + "; ".join(what)


# ---- what comes out ----


def test_what_has_a_kernel() -> None:
    """Everything but what the host alone does."""
    refused = {(dtype.label, op.name) for dtype, op in itertools.product(DType, OPERATIONS) if not kernels.reduces(dtype, op, 2)}
    assert not {("float32", "sum"), ("int64", "avg"), ("bool", "bxor"), ("complex64", "sum")} & refused
    assert {("float8_e5m2", "sum"), ("complex64", "product"), ("int32", "premul_sum")} <= refused
    assert kernels.reduces(DType.FLOAT32, SUM, 32) and not kernels.reduces(DType.FLOAT32, SUM, 33)


@pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=lambda value: getattr(value, "label", str(value)))
def test_every_reduction(dtype: DType, op: ReduceOp) -> None:
    for ranks, count in itertools.product((1, 2, 3), (1, 1000)):
        check(dtype, op, given(dtype, ranks, count), to=1 if ranks == 3 else -1)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda dtype: dtype.label)
def test_every_narrow_float(dtype: DType) -> None:
    """Widened, and rounded from numbers of which many lie halfway between two."""
    x = np.arange(1 << 16, dtype=np.uint16).view(numpy_type(dtype))
    others = [np.random.default_rng(rank).permutation(x) for rank in range(2)]
    check(dtype, SUM, [x])
    for factor in (0.1, 0.5, 1.5):
        check(dtype, premul_sum(factor), [x])
    for op in ("sum", "product", "avg"):
        check(dtype, OPS[op], [x, *others])


@pytest.mark.parametrize("blocks", [2048, 7])
def test_a_long_one(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an element for each thread, and with many."""
    monkeypatch.setattr(kernels, "_BLOCKS", blocks)
    inputs = [np.random.default_rng(rank).standard_normal(100003, np.float32) for rank in range(3)]
    check(DType.FLOAT32, SUM, inputs)


# ---- what is refused, and what fails ----


ADD = "add.rn.f32 %v0, %v0, %v1"
CHANGES = [  # of what is added in float32
    (ADD, "addd.rn.f32 %v0, %v0, %v1"), (ADD, "add.rm.f32 %v0, %v0, %v1"), (ADD, "add.rn.f16 %v0, %v0, %v1"),
    (ADD, "add.rn %v0, %v0, %v1"), (ADD, "add.rn.f32.f32 %v0, %v0, %v1"), (ADD, "add.rn.f32 %v0 %v0, %v1"),
    (ADD, "add.rn.f32 %v0, %v1"), (ADD, "add.rn.f32 %v0, %v0, %v1, %v1"), (ADD, "add.rn.f32 %v0, %v0, %v2"),
    (ADD, "add.rn.f32 %v0, %v0, %r0"), (ADD, "add.rn.f32 0f3F800000, %v0, %v1"), (ADD, "add.rn.f32 %v0, %v0, 1"),
    (ADD, "add.rn.f32 %v0, %v0, 0d3FF0000000000000"), (ADD, "add.rn.f32 %v0, %v0, 0f3F80000"), (ADD, f"@%thread {ADD}"),
    (ADD, "add.u32 %r0, %r0, 0x100000000"), (ADD, "add.u32 %r0, %r0, %tid.x"), (ADD, "mov.u64 %i, %tid.x"),
    (ADD, "and.u32 %r0, %r0, 1"), (ADD, "shl.b32 %r0, %r0, %i"), (ADD, "cvt.f16.f32 %r0, %v0"), (ADD, "cvt.rn.u64.u32 %i, %r0"),
    (ADD, "selp.f32 %v0, %v0, %v1, %r0"), (ADD, "setp.nan.u32 %p, %r0, %r0"), (ADD, "div.f32 %v0, %v0, %v1"),
    (ADD, "mul.wide.u32 %r0, %r0, %r0"), ("ld.global.f32", "ld.global.f64"), ("ld.global.f32", "ld.global.u8"), ("[%at]", "%at"),
    ("[%at]", "[%thread]"), ("[in1]", "[in2]"), ("[in1]", "[%in1]"), ("ld.param.u64", "ld.param.u32"), ("%ctaid.x", "%ctaid.w"),
    ("add.u64 %i, %i", "add.u64 %i, %thread"), ("bra NEXT", "bra NEXTS"), ("END:", "NEXT:"), ("ret;", "ret"), ("ret;", ""),
    ("ret;", "@%p ret;"), (".pred %p, %done;", ".pred %p;"), (".pred %p, %done;", ".pred %p, %done, %p;"), (".pred", ".u32"),
    (".f64 %wide", ".f63 %wide"), (".param .u64 in0", ".param .u32 in0"), (".address_size 64", ".address_size 32")]


@pytest.mark.parametrize("change", CHANGES, ids=" to ".join)
def test_what_is_no_kernel(change: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernels.source(DType.FLOAT32, SUM, 2)
    assert change[0] in made
    monkeypatch.setattr(kernels, "source", lambda *_: made.replace(*change))
    with pytest.raises(DistBackendError, match="CUDA failed to compile sum of float32 for the device: .*218"):
        on_device(DType.FLOAT32, SUM, [np.ones(3, np.float32)] * 2)


@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"])
def test_a_call_that_fails(name: str, cuda: arrays.Cuda) -> None:
    cuda.tell("standin_fail", name.encode(), 1, 719)
    with pytest.raises(DistBackendError, match="719"):
        on_device(DType.FLOAT32, SUM, [np.ones(3, np.float32)] * 2)


def reduced(to: int, source: int) -> None:
    kernels.Kernels(runtime()).reduce(to, [source, source], 4, DType.FLOAT32, SUM, arrays.LEGACY, 0)
    runtime().synchronize(arrays.LEGACY, 0)


@pytest.mark.parametrize(("place", "code"), [
    (lambda there, other: there, None), (lambda there, other: there + 4096 - 8, 700), (lambda there, other: other, 700),
    (lambda there, other: 0, 700), (lambda there, other: there + 2, 716)],
    ids=["right", "behind the end", "the other device's", "none", "not aligned"])
@pytest.mark.parametrize("written", [True, False])
def test_where_no_memory_is(place: Callable[[int, int], int], code: int | None, written: bool, cuda: arrays.Cuda) -> None:
    """Of the device, to which the other's does not belong: all fails from then on."""
    there, other = runtime().malloc(4096, 0), runtime().malloc(4096, 1)
    at = place(there, other)
    if code is None:
        reduced(there, there)
    else:
        for _ in range(2):
            with pytest.raises(DistBackendError, match=str(code)):
                reduced(*((at, there) if written else (there, at)))
    cuda.tell("standin_reset", 2)
    for address in (there, other):
        runtime().free(address)


def test_a_kernel_is_one_device_s(cuda: arrays.Cuda) -> None:
    """And to load it makes a context there."""
    made, there = kernels.Kernels(runtime()), runtime().malloc(16, 1)
    cuda.tell("standin_reset", 2)
    with runtime().on(1):
        made.reduce(there, [there, there], 4, DType.FLOAT32, SUM, arrays.LEGACY, 1)
        runtime().synchronize(arrays.LEGACY, 1)
    assert cuda.tell("standin_contexts") == 2
    with pytest.raises(DistBackendError, match="400"):
        made.reduce(there, [there, there], 4, DType.FLOAT32, SUM, arrays.LEGACY, 1)
    runtime().free(there)

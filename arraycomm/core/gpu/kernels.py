"""Reductions on a device: each kernel reads every rank's memory once and writes the result once.

Written in PTX ("Parallel Thread Execution ISA"), which the driver compiles at run time for the device present: no build step
and no other library are needed. Every rank's part is a separate operand, in rank order. Results are bit-identical to the host
engine's (docs/reference/semantics.md): no fused operations, and narrow floats are
rounded once.
"""

from __future__ import annotations

import struct

from ..arrays.types import DType, ReduceOp
from ..base.record import Record
from ..base.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .runtime import Runtime

_MOST = 32  # ranks: operands are named one by one
_THREADS, _BLOCKS = 256, 2048  # maximum per launch; a thread loops over its elements

# {p} is a scratch predicate, {a} what has been reduced so far, {b} the next operand, {s} and {t} scratch of their type.
_FLOATS = {
    "sum": "add.rn.{w} {a}, {a}, {b};",
    "product": "mul.rn.{w} {a}, {a}, {b};",
    "min": "setp.nan.{w} {p}, {a}, {b}; add.{w} {s}, {a}, {b}; min.{w} {t}, {a}, {b}; selp.{w} {a}, {s}, {t}, {p};",
    "max": "setp.nan.{w} {p}, {a}, {b}; add.{w} {s}, {a}, {b}; max.{w} {t}, {a}, {b}; selp.{w} {a}, {s}, {t}, {p};",
}
_FLOATS |= {"avg": _FLOATS["sum"], "premul_sum": "mul.rn.{w} {b}, {b}, %factor; " + _FLOATS["sum"]}
_INTEGERS = {
    "sum": "add.{w} {a}, {a}, {b};",
    "product": "mul.lo.{w} {a}, {a}, {b};",
    "min": "min.{w} {a}, {a}, {b};",
    "max": "max.{w} {a}, {a}, {b};",
    "avg": "add.{w} {a}, {a}, {b};",
}
_BYTES = _INTEGERS | {"band": "and.b32 {a}, {a}, {b};", "bor": "or.b32 {a}, {a}, {b};", "bxor": "xor.b32 {a}, {a}, {b};"}
_BOOLS = {"sum": _BYTES["bor"], "max": _BYTES["bor"], "bor": _BYTES["bor"], "product": _BYTES["band"], "min": _BYTES["band"],
          "band": _BYTES["band"], "bxor": _BYTES["bxor"]}
_HELD = {"s8": "s32", "s16": "s32", "u8": "u32", "u16": "u32"}  # register types for memory types without PTX arithmetic
_NAN = "setp.nan.f32 %p, {a}, {a}; "


class _Kind(Record):
    """The arithmetic of a dtype. w: the type of registers; m: the type in memory.

    widen: an element in {m} as {b}; narrow: {a} as an element in {m}. Empty: memory's type is the one.
    """

    w: str
    m: str
    nbytes: int
    steps: dict[str, str]
    widen: str = ""
    narrow: str = ""
    parts: int = 1  # of one element, reduced separately


_FLOAT32 = _Kind("f32", "f32", 4, _FLOATS, narrow=_NAN + "selp.f32 {m}, 0f7FC00000, {a}, %p;")
_FLOAT64 = _Kind("f64", "f64", 8, _FLOATS, narrow="setp.nan.f64 %p, {a}, {a}; selp.f64 {m}, 0d7FF8000000000000, {a}, %p;")


def _complex(part: _Kind) -> _Kind:
    return _Kind(part.w, part.m, part.nbytes, {name: part.steps[name] for name in ("sum", "avg")}, narrow=part.narrow, parts=2)


_KINDS = {
    DType.BOOL: _Kind("u32", "u8", 1, _BOOLS, widen="setp.ne.u32 %p, {m}, 0; selp.u32 {b}, 1, 0, %p;"),
    DType.INT8: _Kind("s32", "s8", 1, _INTEGERS),
    DType.INT16: _Kind("s32", "s16", 2, _INTEGERS),
    DType.INT32: _Kind("s32", "s32", 4, _INTEGERS),
    DType.INT64: _Kind("s64", "s64", 8, _INTEGERS),
    DType.UINT8: _Kind("u32", "u8", 1, _BYTES),
    DType.UINT16: _Kind("u32", "u16", 2, _INTEGERS),
    DType.UINT32: _Kind("u32", "u32", 4, _INTEGERS),
    DType.UINT64: _Kind("u64", "u64", 8, _INTEGERS),
    DType.FLOAT16: _Kind("f32", "b16", 2, _FLOATS, widen="cvt.f32.f16 {b}, {m};",
                         narrow=_NAN + "cvt.rn.f16.f32 {m}, {a}; selp.b16 {m}, 0x7E00, {m}, %p;"),
    DType.BFLOAT16: _Kind("f32", "u16", 2, _FLOATS, widen="shl.b32 %r0, {m}, 16; mov.b32 {b}, %r0;",
                          narrow=_NAN + "mov.b32 %r0, {a}; shr.u32 %r1, %r0, 16; and.b32 %r1, %r1, 1; add.u32 %r1, %r1, 0x7FFF; "
                          "add.u32 %r0, %r0, %r1; shr.u32 %r0, %r0, 16; selp.u32 {m}, 0x7FC0, %r0, %p;"),
    DType.FLOAT32: _FLOAT32,
    DType.FLOAT64: _FLOAT64,
    DType.COMPLEX64: _complex(_FLOAT32),
    DType.COMPLEX128: _complex(_FLOAT64),
}


def reduces(dtype: int, op: ReduceOp, ranks: int) -> bool:
    """Whether there is a kernel; else the host reduces. Equal on all ranks."""
    kind = _KINDS.get(DType(dtype))
    return ranks <= _MOST and kind is not None and op.name in kind.steps


def source(dtype: int, op: ReduceOp, ranks: int) -> str:
    """PTX of `reduce(out, elements, factor, in0, in1, ...)`, for pairs that reduces()."""
    kind = _KINDS[DType(dtype)]
    held = _HELD.get(kind.m, kind.m)
    inputs = [f"%in{rank}" for rank in range(ranks)]
    loads = [f"add.u64 %at, %in{rank}, %offset; ld.global.{kind.m} %m{rank}, [%at];" for rank in range(ranks)]
    widens = [_put(kind, kind.widen or "mov.{w} {b}, {m};", rank, rank) for rank in range(ranks)]
    first = "mul.rn.{w} {a}, {a}, %factor;" if op.name == "premul_sum" else ""
    steps = [_put(kind, first, 0, 0)] + [_put(kind, kind.steps[op.name], rank, rank) for rank in range(1, ranks)]
    return "\n".join([
        ".version 6.0", ".target sm_60", ".address_size 64",
        ".visible .entry reduce(.param .u64 out, .param .u64 count, .param .f64 factor, "
        + ", ".join(f".param .u64 in{rank}" for rank in range(ranks)) + ")", "{",
        f".reg .pred %p, %done; .reg .u32 %thread, %block, %threads, %blocks, %r<2>; .reg .{held} %m<{ranks}>;",
        f".reg .{kind.w} %v<{ranks}>, %s, %t{', %factor' if op.name == 'premul_sum' else ''}; .reg .f64 %wide;",
        f".reg .u64 %at, %out, %count, %i, %step, %offset, {', '.join(inputs)};",
        "ld.param.u64 %out, [out]; cvta.to.global.u64 %out, %out; ld.param.u64 %count, [count];",
        *(f"ld.param.u64 {name}, [in{rank}]; cvta.to.global.u64 {name}, {name};" for rank, name in enumerate(inputs)),
        *(_factor(kind) if op.name == "premul_sum" else []),
        "mov.u32 %thread, %tid.x; mov.u32 %block, %ctaid.x; mov.u32 %threads, %ntid.x; mov.u32 %blocks, %nctaid.x;",
        "mul.wide.u32 %i, %block, %threads; cvt.u64.u32 %at, %thread; add.u64 %i, %i, %at;",
        "mul.wide.u32 %step, %blocks, %threads;",
        "NEXT:", "setp.ge.u64 %done, %i, %count;", "@%done bra END;", f"mul.lo.u64 %offset, %i, {kind.nbytes};",
        *loads, *widens, *filter(None, steps), *_divide(kind, op, ranks),
        _put(kind, kind.narrow or "mov.{w} {m}, {a};", 0, 0),
        f"add.u64 %at, %out, %offset; st.global.{kind.m} [%at], %m0;", "add.u64 %i, %i, %step;", "bra NEXT;",
        "END:", "ret;", "}", ""])


def _put(kind: _Kind, text: str, m: int, b: int) -> str:
    return text.format(w=kind.w, m=f"%m{m}", a="%v0", b=f"%v{b}", s="%s", t="%t", p="%p")


def _factor(kind: _Kind) -> list[str]:
    return ["ld.param.f64 %wide, [factor];", "mov.f64 %factor, %wide;" if kind.w == "f64" else "cvt.rn.f32.f64 %factor, %wide;"]


def _divide(kind: _Kind, op: ReduceOp, ranks: int) -> list[str]:
    if op.name != "avg":
        return []
    if kind.w == "f32":
        return [f"div.rn.f32 %v0, %v0, 0f{struct.pack('>f', ranks).hex().upper()};"]
    if kind.w == "f64":
        return [f"div.rn.f64 %v0, %v0, 0d{struct.pack('>d', ranks).hex().upper()};"]
    wrapped = [f"cvt.{kind.w}.{kind.m} %v0, %v0;"] if kind.m != kind.w else []
    return [*wrapped, f"div.{kind.w} %v0, %v0, {ranks};"]


class Kernels:
    """The compiled kernels of this process; compiled on first use on a device."""

    def __init__(self, cuda: Runtime) -> None:
        self._cuda = cuda
        self._load, self._find, self._launch = (
            cuda.driver("cuModuleLoadData", "int (*)(uintptr_t *, const char *)"),
            cuda.driver("cuModuleGetFunction", "int (*)(uintptr_t *, uintptr_t, const char *)"),
            cuda.driver("cuLaunchKernel", f"int (*)(uintptr_t, {'unsigned, ' * 7}uintptr_t, void **, void **)"))
        self._functions: dict[tuple[int, int, str, int], int] = {}

    def reduce(self, to: int, inputs: Sequence[int], count: int, dtype: int, op: ReduceOp, stream: int, device: int) -> None:
        """Enqueues a reduction on the current device. to: may be one of the inputs. Raises DistBackendError."""
        kind = _KINDS[DType(dtype)]
        key = (device, int(dtype), op.name, len(inputs))
        function = self._functions.get(key) or self._functions.setdefault(key, self._compiled(dtype, op, len(inputs)))
        new, elements = self._cuda.ffi.new, count * kind.parts
        arguments = [new("uint64_t *", to), new("uint64_t *", elements), new("double *", op.factor),
                     *(new("uint64_t *", address) for address in inputs)]
        blocks = max(1, min(_BLOCKS, -(-elements // _THREADS)))
        self._cuda.check(self._launch(function, blocks, 1, 1, _THREADS, 1, 1, 0, stream, new("void *[]", arguments),
                                      self._cuda.ffi.NULL), f"{op.name} {count} {DType(dtype).label} of {len(inputs)} ranks")

    def _compiled(self, dtype: int, op: ReduceOp, ranks: int) -> int:
        doing = f"compile {op.name} of {DType(dtype).label} for the device"
        module, function = self._cuda.ffi.new("uintptr_t *"), self._cuda.ffi.new("uintptr_t *")
        self._cuda.check(self._load(module, source(dtype, op, ranks).encode()), doing)
        self._cuda.check(self._find(function, module[0], b"reduce"), doing)
        return int(function[0])


_kernels: list[Kernels] = []


def kernels(cuda: Runtime) -> Kernels:
    """The process's Kernels. Raises DistBackendError if the driver lacks the functions."""
    if not _kernels:
        _kernels.append(Kernels(cuda))
    return _kernels[0]

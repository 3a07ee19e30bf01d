"""A device's reductions, bit for bit what docs/reference/semantics.md says: `python -m tests.gpu.parts kernels`. One process."""

from __future__ import annotations

from typing import Any

import numpy as np

from arraycomm.core.arrays.types import OPS, DType, ReduceOp, premul_sum
from arraycomm.core.gpu.kernels import Kernels, reduces
from arraycomm.core.gpu.runtime import TO_DEVICE, TO_HOST, runtime
from tests.conformance.data import contents, difference, numpy_dtype, reduced

EVERY_OP = [*dict.fromkeys(OPS.values()), premul_sum(0.1), premul_sum(-3.0)]
KNOWN = [(dtype, op) for dtype in DType for op in EVERY_OP if reduces(dtype, op, 2)]
_SHAPES = ((1, 10), (2, 1), (2, 600), (3, 301))  # operands, elements
_EXTREMES = (0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 6e-8, 6.1e-5, 65504.0, 65519.0, 65520.0, 3.3e38, 1 + 2**-8,
             1 + 2**-11)


def start(_ranks: int, _framework: str) -> None:
    wrong = [f"{dtype.label}, {op}: {what}" for dtype, op in KNOWN for what in [difference_of(dtype, op)] if what]
    print("| reductions on the device | with the host's bits |\n|---|---|", flush=True)
    print(f"| {len(KNOWN)} | {len(KNOWN) - len(wrong)} |", flush=True)
    assert not wrong, "\n".join(wrong)


def difference_of(dtype: DType, op: ReduceOp) -> str | None:
    """What is wrong, or None."""
    for ranks, count in _SHAPES:
        inputs = _inputs(dtype, ranks, count)
        plain = [x.view(np.uint8) != 0 for x in inputs] if dtype is DType.BOOL else inputs
        wrong = difference(on_device(dtype, op, inputs, in_place=ranks == 3), reduced(op.name, plain, op.factor))
        if wrong is not None:
            return f"{ranks} operands of {count}: {wrong}"
    return None


def _inputs(dtype: DType, ranks: int, count: int) -> list[np.ndarray[Any, Any]]:
    """Numbers, then whatever bits, then extremes of floats against each other."""
    found, kind = [], numpy_dtype(dtype.label)
    for rank in range(ranks):
        x, chance, third = contents(dtype.label, (count,), rank, 71, rough=True).copy(), np.random.default_rng(rank), count // 3
        x[third : 2 * third] = chance.integers(0, 256, x.nbytes, np.uint8).view(kind)[third : 2 * third]
        if kind.kind not in "biu":
            with np.errstate(all="ignore"):
                x[2 * third :] = np.array(chance.choice(_EXTREMES, count - 2 * third)).astype(kind)
        found.append(x)
    return found


def on_device(dtype: DType, op: ReduceOp, inputs: list[np.ndarray[Any, Any]], *, in_place: bool = False) -> np.ndarray[Any, Any]:
    """The current one. in_place: into the first input."""
    cuda, device, nbytes = runtime(), runtime().device(), inputs[0].nbytes
    stream, pinned = cuda.stream(device), cuda.host_alloc(nbytes)
    there = [cuda.malloc(nbytes, device) for _ in range(len(inputs) + 1)]
    host = np.frombuffer(cuda.ffi.buffer(cuda.ffi.cast("char *", pinned), nbytes), inputs[0].dtype)
    try:
        for address, array in zip(there, inputs, strict=False):
            host[:] = array
            cuda.copy(address, pinned, nbytes, TO_DEVICE, stream)
            cuda.synchronize(stream, device)
        to = there[0 if in_place else -1]
        Kernels(cuda).reduce(to, there[:-1], inputs[0].size, dtype, op, stream, device)
        cuda.copy(pinned, to, nbytes, TO_HOST, stream)
        cuda.synchronize(stream, device)
        return host.copy()
    finally:
        for address in there:
            cuda.free(address)
        cuda.free_host(pinned)
        cuda.destroy_stream(stream)

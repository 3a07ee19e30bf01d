"""The NCCL backend on a GPU, on 1 and 2 ranks: with one GPU, these share it (NCCL_MULTI_RANK_GPU_ENABLE=1, NCCL 2.30)."""

from __future__ import annotations

import os

import numpy as np
import pytest

import arraycomm

from . import frameworks

DTYPES = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64", "complex64")
OPS = ("sum", "product", "min", "max", "avg")
COUNTS = (1, 7, 1024, 1_000_003)


def close(got: np.ndarray, want: np.ndarray, what: str) -> None:
    tolerance = 1e-2 if got.dtype == np.float16 else 1e-5
    assert got.dtype == want.dtype and np.allclose(got, want, rtol=tolerance, atol=tolerance), what


def reduced(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    stacked = np.stack(arrays)
    if op == "avg":
        mean = stacked.sum(0) / len(arrays)
        return (np.trunc(mean) if stacked.dtype.kind in "iu" else mean).astype(stacked.dtype)
    function = {"sum": np.sum, "product": np.prod, "min": np.min, "max": np.max}[op]
    return function(stacked, axis=0).astype(stacked.dtype)


def everything(rank: int) -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several ranks share a GPU
    usable = frameworks.found()
    assert usable, "no framework here has arrays on a GPU"
    with arraycomm.init(backend="nccl", timeout=120) as group:
        for name in usable:
            for dtype in DTYPES:
                operations(group, name, dtype)
            streams(group, name)
            with group.split(0) as part:
                operations(part, name, "float32")


def operations(group: arraycomm.Group, name: str, dtype: str) -> None:
    me, size = group.rank, group.size
    for count in COUNTS:
        inputs = [(np.arange(count * size) % 5 + rank).astype(dtype).reshape(size, count) for rank in range(size)]
        x, label = frameworks.make(name, inputs[me]), f"{name} {dtype} {count}"
        for op in OPS if dtype != "complex64" else ("sum", "avg"):
            close(frameworks.back(group.all_reduce(x, op)), reduced(op, inputs), f"all_reduce {op} {label}")
        close(frameworks.back(group.reduce_scatter(x)), reduced("sum", inputs)[me : me + 1], f"reduce_scatter {label}")
        close(frameworks.back(group.all_gather(x)), np.concatenate(inputs), f"all_gather {label}")
        close(frameworks.back(group.broadcast(x, size - 1)), inputs[-1], f"broadcast {label}")
        close(frameworks.back(group.all_to_all(x)), np.stack([row[me] for row in inputs]), f"all_to_all {label}")
        gathered = group.gather(x, root=0)
        if me == 0:
            close(frameworks.back(gathered), np.concatenate(inputs), f"gather {label}")
        close(frameworks.back(group.scatter(x, 0, like=x[:1])), inputs[0][me : me + 1], f"scatter {label}")
        with group.batch():
            group.isend(x, (me + 1) % size)
            work = group.irecv(x, (me - 1) % size)
        close(frameworks.back(work.result().array), inputs[me - 1], f"batch {label}")


def streams(group: arraycomm.Group, name: str) -> None:
    """Long work before and after, and asynchronous operations in between: nothing is read too early."""
    x = frameworks.make(name, np.ones(1 << 22, np.float32))
    for turn in range(20):
        y = group.all_reduce(x + turn, async_op=turn % 2 == 1)
        y = y.result() if turn % 2 else y
        close(frameworks.back(y * 2), np.full(1 << 22, 2.0 * group.size * (1 + turn), np.float32), f"{name} turn {turn}")


@pytest.mark.parametrize("ranks", [1, 2])
def test_everything(ranks: int) -> None:
    arraycomm.spawn(everything, nprocs=ranks)

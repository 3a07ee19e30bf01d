"""What is for arrays in host memory only, beside arrays on GPUs: sums that are compressed or sparse, and windows. `python -m
tests.gpu.parts sums 2`.

Compressed and sparse sums refuse a GPU's arrays before anything is sent, over whatever backend; copies in host memory are
summed, in a group with NCCL too. Windows are refused by groups with NCCL; the engine's own lie in host memory, and a GPU's
arrays are put into them and got from them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

import arraycomm
import arraycomm.distributed as dist
from arraycomm.core.base.errors import DeviceError, ImmutableOutput
from arraycomm.frameworks.compression import SCHEMES, compressed_all_reduce
from arraycomm.frameworks.sparse import sparse_all_reduce
from tests.frameworks.rounding import contribution, rounding

from . import frameworks, programs

COUNT, BLOCK, ROWS, WIDTH = 20_000, 256, 500, 3


def start(ranks: int, framework: str) -> None:
    print("| what | arrays of | over | ranks | is |\n|---|---|---|---|---|", flush=True)
    arraycomm.spawn(work, (framework,), nprocs=ranks)


def work(rank: int, framework: str) -> None:
    usable = frameworks.use(rank, framework)
    dist.init_process_group("nccl", timeout=timedelta(seconds=60))
    world: Any = dist.group.WORLD
    engine: Any = dist.new_group(backend="gloo")
    for name in usable:
        for backend, group in (("nccl", world), ("socket", engine)):
            compressed(group.core, name)
            row("compressed_all_reduce", name, backend, "refused on the GPU, within its bounds for copies on the host")
            sparse(group.core, name)
            row("sparse_all_reduce", name, backend, "refused on the GPU, right for copies on the host")
        if name == "torch":
            pinned(world.core)
            row("pinned tensors", name, "nccl", "as those in host memory")
        refused_window(world)
        row("new_window", name, "nccl", "refused")
        window(engine, name)
        row("new_window", name, "socket", "refused on the GPU; put, accumulate and get of a GPU's arrays are right")
    dist.barrier()
    dist.destroy_process_group()


def row(what: str, name: str, backend: str, found: str) -> None:
    dist.barrier()  # it holds on all ranks
    if dist.get_rank() == 0:
        print(f"| {what} | {name} | {backend} | {dist.get_world_size()} | {found} |", flush=True)


def refused(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), f"{type(error).__name__} says {error}, and not {words!r}"
    else:
        raise AssertionError(f"no {kind.__name__} with {words!r}")


# ---- sums ----


def compressed(group: arraycomm.Group, name: str) -> None:
    everybody = [contribution(rank, COUNT) for rank in range(group.size)]
    exact = sum(x.astype(np.float64) for x in everybody)
    mine = frameworks.make(name, everybody[group.rank])
    for scheme in SCHEMES:
        refused(lambda scheme=scheme: compressed_all_reduce(group, mine, scheme), TypeError,  # type: ignore[misc]
                "takes float32 in host memory")
        if scheme != "int8" and importlib.util.find_spec("ml_dtypes") is None:
            continue
        found = frameworks.make(name, compressed_all_reduce(group, frameworks.back(mine), scheme, block=BLOCK))
        inputs = sum(rounding(x, scheme, BLOCK) for x in everybody)
        limit = inputs + rounding(np.abs(exact) + inputs, scheme, BLOCK) + 1e-6 * sum(np.abs(x) for x in everybody)
        wrong = np.abs(frameworks.back(found) - exact) > limit
        assert not wrong.any(), f"{scheme}: {wrong.sum()} elements are beyond what the module states"
    programs.close(frameworks.back(group.all_reduce(mine)), exact.astype(np.float32), "the group goes on")


def sparse(group: arraycomm.Group, name: str) -> None:
    given = [_entries(rank) for rank in range(group.size)]
    dense = np.zeros((ROWS, WIDTH), np.float32)
    for numbers, rows in given:
        np.add.at(dense, numbers, rows)
    indices, values = given[group.rank]
    i, x = frameworks.make(name, indices), frameworks.make(name, values)
    refused(lambda: sparse_all_reduce(group, i, x, ROWS), TypeError, "on a device: indices")
    refused(lambda: sparse_all_reduce(group, indices, x, ROWS), TypeError, "on a device: values")
    found, sums = sparse_all_reduce(group, frameworks.back(i), frameworks.back(x), ROWS)
    assert found.tolist() == sorted(set(np.concatenate([numbers for numbers, _ in given]).tolist()))
    programs.close(frameworks.back(frameworks.make(name, sums)), dense[found], f"sparse_all_reduce of {name}")


def _entries(rank: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows of this rank, some of them twice."""
    rng = np.random.default_rng(rank + 100)
    return rng.integers(0, ROWS, 50 + rank), rng.normal(size=(50 + rank, WIDTH)).astype(np.float32)


def pinned(group: arraycomm.Group) -> None:
    """Which DLPack tells apart from ordinary memory."""
    import torch

    x = torch.ones(1000).pin_memory()
    for found in (group.all_reduce(x), compressed_all_reduce(group, x, "int8")):
        assert found.device.type == "cpu" and torch.allclose(found, torch.full((1000,), float(group.size)), rtol=2.0**-6)


# ---- windows ----


def refused_window(group: Any) -> None:
    assert not group.supports_window
    refused(lambda: group.new_window(np.zeros(4, np.float32)), RuntimeError, "has no windows")


def window(group: Any, name: str) -> None:
    me, size = group.rank(), group.size()
    x = frameworks.make(name, np.full(4, me + 1, np.float32))
    if name == "jax":
        refused(lambda: group.new_window(x), ImmutableOutput, "immutable")
    else:
        refused(lambda: group.new_window(x), DeviceError, "lies in host memory")
    there = group.new_window(mine := np.zeros(4 * size, np.float32))
    for target in range(size):
        there.put(x, target, 4 * me)
    there.fence()
    want = np.repeat(np.arange(1, size + 1, dtype=np.float32), 4)
    programs.close(mine, want, f"put of {name}")
    there.fence()  # all have seen it
    there.accumulate(x, 0, 0)
    there.fence()
    want[:4] += sum(range(1, size + 1))
    if name != "jax":  # whose arrays cannot be written
        found = frameworks.make(name, np.zeros(4 * size, np.float32))
        there.get(found, 0)
        programs.close(frameworks.back(found), want, f"get of {name}")
    if me == 0:
        programs.close(mine, want, f"accumulate of {name}")
    there.fence()
    there.tensor_deregister()

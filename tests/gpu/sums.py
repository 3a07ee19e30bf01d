"""What goes by host memory, beside arrays on GPUs: sparse sums, and windows. `python -m tests.gpu.parts sums 2`.

torch's sparse tensors on a GPU are summed by the host, in a group with NCCL too. Windows are refused by groups with NCCL; the
engine's own lie in host memory, and a GPU's arrays are put into them and got from them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

import arraycomm
import arraycomm.distributed as dist
from arraycomm.core.base.errors import DeviceError, ImmutableOutput

from . import frameworks, programs

ROWS, WIDTH = 500, 3


def start(ranks: int, framework: str) -> None:
    print("| what | arrays of | over | ranks | is |\n|---|---|---|---|---|", flush=True)
    arraycomm.spawn(work, (framework,), nprocs=ranks)


def work(rank: int, framework: str) -> None:
    usable = frameworks.use(rank, framework)
    dist.init_process_group("nccl", timeout=timedelta(seconds=60))
    world: Any = dist.group.WORLD
    engine: Any = dist.new_group(backend="gloo")
    for name in usable:
        if name == "torch":
            for backend, group in (("nccl", world), ("socket", engine)):
                sparse(group)
                row("all_reduce of sparse tensors", name, backend, "right")
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


def sparse(group: Any) -> None:
    import torch

    given = [_entries(rank) for rank in range(group.size())]
    dense = np.zeros((ROWS, WIDTH), np.float32)
    for numbers, rows in given:
        np.add.at(dense, numbers, rows)
    indices, values = given[group.rank()]
    x = torch.sparse_coo_tensor(torch.tensor(indices)[None], torch.tensor(values), (ROWS, WIDTH)).cuda()
    dist.all_reduce(x, group=group)
    programs.close(x.to_dense().cpu().numpy(), dense, "all_reduce of sparse tensors")


def _entries(rank: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows of this rank, some of them twice."""
    rng = np.random.default_rng(rank + 100)
    return rng.integers(0, ROWS, 50 + rank), rng.normal(size=(50 + rank, WIDTH)).astype(np.float32)


def pinned(group: arraycomm.Group) -> None:
    """Which DLPack tells apart from ordinary memory."""
    import torch

    x = torch.ones(1000).pin_memory()
    found = group.all_reduce(x)
    assert found.device.type == "cpu" and torch.equal(found, torch.full((1000,), float(group.size)))


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

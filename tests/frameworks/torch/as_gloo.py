"""Programs over gloo, over arraycomm by its name, and over arraycomm in gloo's place.

`python -m tests.frameworks.torch.as_gloo FOLDER`. Two ranks, whose results are the same bits: a sum of two numbers has one order
only. With more, gloo adds in an order of its own.
"""

from __future__ import annotations

import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel would import it on each rank
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh

import arraycomm.frameworks.torch
from arraycomm.launch.spawn import spawn
from tests.logged import logged

from .programs import PROGRAMS
from .ranks import prepare

SAME_BITS = ("reductions", "movements", "sparse", "groups", "coalescing", "functional_collectives", "data_parallel",
             "communication_hooks", "sharded_optimizer", "fully_sharded", "distributed_tensors", "checkpoints")
CPU = torch.device("cpu")


def run(label: str, backend: str | None, name: str, rank: int, folder: Path, **given: Any) -> Any:
    mine = folder / f"{name}-{label}"
    mine.mkdir(exist_ok=True)
    dist.init_process_group(backend, init_method=f"file://{mine}/store", rank=rank, world_size=2, **given)
    try:
        torch.manual_seed(rank)
        found = {**PROGRAMS, "answers": answers, "mixed": mixed}[name](rank, 2, mine)
        dist.barrier()
        return found
    finally:
        dist.destroy_process_group()


def ours(group: Any) -> bool:
    return type(group).__module__.startswith("arraycomm.")


def answers(rank: int, size: int, folder: Path) -> list[Any]:
    """What torch tells of groups that a program asks for, by name or not, and what only gloo takes."""
    names: list[Any] = []
    world = dist.group.WORLD
    groups = [world, dist.new_group(backend="gloo", timeout=timedelta(days=10000)), dist.new_group([0, 1]),
              dist.new_group([rank], backend="cpu:gloo", use_local_synchronization=True,
                             pg_options=c10d.ProcessGroupGloo._Options()),
              init_device_mesh("cpu", (size,)).get_group(), c10d._get_default_group()]
    for group in groups:
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        try:
            dist.monitored_barrier(group)
        except ValueError as error:  # where nobody has named gloo, or with a device
            names.append(str(error))
        group.monitored_barrier(timedelta(seconds=60), wait_all_ranks=True)
        backend = group._get_backend(CPU)
        assert isinstance(group, dist.ProcessGroup) and isinstance(backend, dist.ProcessGroupGloo)
        assert group.group_name == backend.options.group_name or not ours(group)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            c10d._set_pg_timeout(timedelta(seconds=50), group)
        names += [x.tolist(), dist.get_backend(group), dist.get_backend_config(group), backend.name(),
                  sorted(map(str, group._device_types)), c10d._get_object_coll_device(group), dist.get_process_group_ranks(group)]
    assert {ours(group) for group in groups} == {ours(world)}
    if ours(world):
        assert world._get_backend(CPU).options._timeout == timedelta(seconds=50)
    names.append(dist.new_group([0], backend="gloo") == dist.GroupMember.NON_GROUP_MEMBER)
    try:
        world._get_backend(torch.device("xpu"))
    except RuntimeError as error:
        names.append(str(error).split(":")[0])
    return [*names, dist.is_gloo_available(), dist.Backend("GLOO")]


def mixed(rank: int, size: int, folder: Path) -> list[Any]:
    """A group that has another backend for another device stays torch's; in a world of another backend gloo is ours."""
    x = torch.ones(2)
    dist.all_reduce(x)
    fakes = dist.new_group(backend="fake")
    pair = dist.new_group([0, 1], backend="gloo")
    y = torch.ones(2)
    dist.all_reduce(y, group=pair)
    return [x.tolist(), y.tolist(), dist.get_backend_config(), ours(dist.group.WORLD), ours(fakes), dist.get_backend(pair)]


def same_bits(name: str, found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{name}: {text}")


def compare(rank: int, folder: Path) -> None:
    prepare()
    asked = {"unnamed": None, "capital": "GLOO", "device": "cpu:gloo", "named": "gloo"}
    expected = {name: run("gloo", "gloo", name, rank, folder) for name in SAME_BITS}
    told = {label: run(label, backend, "answers", rank, folder) for label, backend in asked.items()}
    apart = run("gloo", "cpu:gloo,meta:fake", "mixed", rank, folder)
    for name in SAME_BITS:
        same_bits(name, run("name", "arraycomm", name, rank, folder), expected[name])
    os.environ["ARRAYCOMM_TORCH_AS"] = "gloo"
    arraycomm.frameworks.torch.register()
    arraycomm.frameworks.torch.register()
    with logged() as lines:
        for label, backend in asked.items():
            found = run(label + "-as", backend, "answers", rank, folder, pg_options=c10d.ProcessGroupGloo._Options())
            assert found == told[label], [pair for pair in zip(found, told[label], strict=True) if pair[0] != pair[1]]
        assert len(lines) == (rank == 0), lines
        assert run("as", "cpu:gloo,meta:fake", "mixed", rank, folder) == apart
        assert len(lines) == 2 * (rank == 0), lines
    for name in SAME_BITS:
        same_bits(name, run("as", "gloo", name, rank, folder), expected[name])


if __name__ == "__main__":
    spawn(compare, (Path(sys.argv[1]),), nprocs=2, start_method="fork")

"""torch.profiler shows operations under torch's names, and costs nothing when it does not run."""

from __future__ import annotations

from collections import Counter

import pytest

import arraycomm
import arraycomm.distributed as dist

torch = pytest.importorskip("torch")


def profiled(rank: int) -> None:
    dist.init_process_group("gloo")
    x = torch.ones(4)
    core = dist.group.WORLD.core
    dist.all_reduce(x)
    assert type(core) is arraycomm.Group
    with torch.profiler.profile() as profile:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather([torch.empty(4), torch.empty(4)], x)
        dist.barrier()
        if rank:
            dist.send(x, 0)
            dist.isend(x, 0).wait()
        else:
            dist.recv(x, 1)
            dist.recv(x)
        work = dist.all_reduce(x, async_op=True)
        dist.barrier()
        work.wait()
    found = Counter(event.name for event in profile.events() if event.name.startswith(("gloo:", "c10d::")))
    expected = Counter({"c10d::allreduce_": 2, "gloo:all_reduce": 2, "c10d::broadcast_": 1, "gloo:broadcast": 1,
                        "c10d::allgather_": 1, "gloo:all_gather": 1, "c10d::barrier": 2, "gloo:barrier": 2})
    expected.update({"c10d::send": 2, "gloo:send": 2} if rank else
                    {"c10d::recv_": 1, "gloo:recv": 1, "c10d::recv_any_source_": 1, "gloo:recvAnySource": 1})
    assert found == expected
    inner = next(event for event in profile.events() if event.name == "gloo:broadcast")
    assert inner.cpu_parent.name == "c10d::broadcast_"
    dist.all_reduce(x)
    assert type(core) is arraycomm.Group
    dist.destroy_process_group()


def test_torch_profiler() -> None:
    arraycomm.spawn(profiled, nprocs=2)

"""What programs for torch.distributed see when ranks differ or die: python -m tests.frameworks.torch.faults FOLDER, two ranks."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn

import arraycomm
from arraycomm.launch.spawn import spawn


def caught(kind: type[BaseException], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"no {kind.__name__}")


def wrong_arguments(rank: int) -> None:
    """Nothing is sent, and the group stays usable."""
    x = torch.zeros(3)
    assert "2 times as many" in caught(RuntimeError, lambda: dist.all_gather_single(torch.zeros(5), x))
    assert "float32" in caught(RuntimeError, lambda: dist.all_reduce(x, dist.ReduceOp.BAND))
    assert "dtypes" in caught(ValueError, lambda: dist.all_gather([x, x.double()], x))
    assert "got BAND" in caught(RuntimeError, lambda: dist.all_reduce(x.to_sparse(), dist.ReduceOp.BAND))
    ops, name, other = torch.ops._c10d_functional, dist.group.WORLD.group_name, 1 - rank
    assert "longer" in caught(ValueError, lambda: ops.batch_p2p_ops(["isend"], [other, other], [0], [x], name))
    dist.all_reduce(x)
    there, here = torch.full((2,), float(rank)), torch.zeros(2)  # of another length than x
    for message in ops.batch_p2p_ops(["isend", "irecv"], [other, other], [0, 0], [there, here], name):
        ops.wait_tensor(message)
    assert here.tolist() == [other, other]


def different_calls(rank: int) -> None:
    x = torch.zeros(3 + rank)
    assert f"rank {rank}" in caught(arraycomm.CollectiveMismatch, lambda: dist.all_reduce(x))


def different_calls_seen_by_futures(rank: int) -> None:
    x = torch.zeros(3 + rank)
    work = dist.all_reduce(x, async_op=True)
    assert "CollectiveMismatch" in caught(RuntimeError, lambda: work.get_future().wait())
    assert work.is_completed() and not work.is_success() and isinstance(work.exception(), arraycomm.CollectiveMismatch)
    assert work.get_future_result().wait() == 2


def too_late(rank: int) -> None:
    if rank == 0:
        said = caught(arraycomm.CollectiveTimeout, lambda: dist.barrier(timeout=timedelta(milliseconds=300)))
        assert "rank 1" in said, said
    else:  # never comes to the barrier, and hears of its failure
        x = torch.zeros(1)
        caught(arraycomm.GroupError, lambda: dist.recv(x, 0))


def too_late_for_the_groups_timeout(rank: int) -> None:
    x = torch.zeros(1)
    if rank == 0:
        dist.group.WORLD.set_timeout(timedelta(milliseconds=300))
        said = caught(arraycomm.CollectiveTimeout, lambda: dist.all_reduce(x))
        assert "rank 1" in said, said
    else:
        caught(arraycomm.GroupError, lambda: dist.recv(x, 0))


def futures_of_a_closed_group(rank: int) -> None:
    """Which has ended the thread that completes them."""
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(2)]
    works[rank].get_future().wait()
    dist.barrier()  # both have ended here: a closed group aborts those that have not
    dist.group.WORLD.shutdown()
    assert works[1].get_future().wait()[0].tolist() == [2, 2]


def dies(rank: int) -> None:
    """Rank 1 does, once rank 0 has left what came before."""
    store = dist.distributed_c10d._get_default_store()
    if rank:
        store.wait(["rank 0 is ready"])
        os._exit(0)
    store.set("rank 0 is ready", "")


def dead_peer(rank: int) -> None:
    dies(rank)
    said = caught(arraycomm.PeerLost, lambda: dist.all_reduce(torch.zeros(1000)))
    assert "rank 1" in said, said


def dead_peer_in_backward(rank: int) -> None:
    """The reducer waits in C++: an error of the same text."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    dies(rank)
    said = caught(RuntimeError, loss.backward)
    assert "PeerLost" in said and "rank 1" in said, said


SCENARIOS = (wrong_arguments, different_calls, different_calls_seen_by_futures, too_late, too_late_for_the_groups_timeout,
             futures_of_a_closed_group, dead_peer, dead_peer_in_backward)


def run(rank: int, folder: str, name: str) -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    dist.init_process_group("arraycomm", init_method=f"file://{folder}/{name}", rank=rank, world_size=2,
                            timeout=timedelta(seconds=20))
    globals()[name](rank)
    open(f"{folder}/{name}-{rank}", "w").close()
    dist.destroy_process_group()


if __name__ == "__main__":
    for scenario in SCENARIOS:
        spawn(run, (sys.argv[1], scenario.__name__), nprocs=2, start_method="fork")

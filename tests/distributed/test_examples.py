"""The examples of torch.distributed's documents, with torch tensors on the CPU: what they print is what comes out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

import arraycomm.distributed as dist
from arraycomm.distributed import ReduceOp
from arraycomm.launch.spawn import spawn

from ..ports import free_port

LIMIT = timedelta(seconds=30)
EXAMPLES: dict[int, list[Callable[[int], None]]] = {2: [], 3: [], 4: []}


def of(ranks: int) -> Callable[[Callable[[int], None]], Callable[[int], None]]:
    def add(function: Callable[[int], None]) -> Callable[[int], None]:
        EXAMPLES[ranks].append(function)
        return function

    return add


def equal(found: Any, expected: list[Any]) -> None:
    """The example's value on each rank."""
    mine = expected[dist.get_rank()]
    assert str(found) == str(mine) or (torch.is_tensor(found) and torch.equal(found, mine)), f"{found} instead of {mine}"


# ---- two ranks ----


@of(2)
def all_reduce(rank: int) -> None:
    tensor = torch.arange(2, dtype=torch.int64) + 1 + 2 * rank
    dist.all_reduce(tensor, op=ReduceOp.SUM)
    equal(tensor, [torch.tensor([4, 6])] * 2)
    tensor = torch.tensor([1 + 1j, 2 + 2j], dtype=torch.cfloat) + 2 * rank * (1 + 1j)
    dist.all_reduce(tensor, op=ReduceOp.SUM)
    equal(tensor, [torch.tensor([4.0 + 4.0j, 6.0 + 6.0j])] * 2)


@of(2)
def asynchronous(rank: int) -> None:
    output = torch.tensor([rank])
    handle = dist.all_reduce(output, async_op=True)
    handle.wait()  # type: ignore[union-attr]
    output.add_(100)
    equal(output, [torch.tensor([101])] * 2)


@of(2)
def all_gather(rank: int) -> None:
    tensor_list = [torch.zeros(2, dtype=torch.int64) for _ in range(2)]
    tensor = torch.arange(2, dtype=torch.int64) + 1 + 2 * rank
    dist.all_gather(tensor_list, tensor)
    equal(tensor_list, [[torch.tensor([1, 2]), torch.tensor([3, 4])]] * 2)
    tensor_list = [torch.zeros(2, dtype=torch.cfloat) for _ in range(2)]
    dist.all_gather(tensor_list, torch.tensor([1 + 1j, 2 + 2j], dtype=torch.cfloat) + 2 * rank * (1 + 1j))
    equal(tensor_list, [[torch.tensor([1 + 1j, 2 + 2j]), torch.tensor([3 + 3j, 4 + 4j])]] * 2)


@of(2)
def all_gather_into_tensor(rank: int) -> None:
    tensor_in = torch.arange(2, dtype=torch.int64) + 1 + 2 * rank
    tensor_out = torch.zeros(2 * 2, dtype=torch.int64)
    dist.all_gather_into_tensor(tensor_out, tensor_in)
    equal(tensor_out, [torch.tensor([1, 2, 3, 4])] * 2)
    tensor_out2 = torch.zeros(2, 2, dtype=torch.int64)
    dist.all_gather_into_tensor(tensor_out2, tensor_in)
    equal(tensor_out2, [torch.tensor([[1, 2], [3, 4]])] * 2)


@of(2)
def reduce_scatter_tensor(rank: int) -> None:
    tensor_out = torch.zeros(2, dtype=torch.int64)
    tensor_in = torch.arange(4, dtype=torch.int64)
    dist.reduce_scatter_tensor(tensor_out, tensor_in)
    equal(tensor_out, [torch.tensor([0, 2]), torch.tensor([4, 6])])
    dist.reduce_scatter_tensor(tensor_out, torch.reshape(tensor_in, (2, 2)))
    equal(tensor_out, [torch.tensor([0, 2]), torch.tensor([4, 6])])


@of(2)
def gather(rank: int) -> None:
    tensor = torch.ones(2) + rank
    gather_list = [torch.zeros_like(tensor) for _ in range(2)] if dist.get_rank() == 0 else None
    dist.gather(tensor, gather_list, dst=0)
    equal(gather_list, [[torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0])], None])


@of(2)
def scatter(rank: int) -> None:
    output_tensor = torch.zeros(2)
    scatter_list = [torch.ones(2), torch.ones(2) * 5] if dist.get_rank() == 0 else None
    dist.scatter(output_tensor, scatter_list, src=0)
    equal(output_tensor, [torch.tensor([1.0, 1.0]), torch.tensor([5.0, 5.0])])


@of(2)
def send_object_list(rank: int) -> None:
    device = torch.device("cpu")
    objects: list[Any]
    if dist.get_rank() == 0:
        objects = ["foo", 12, {1: 2}]
        dist.send_object_list(objects, dst=1, device=device)
    else:
        objects = [None, None, None]
        dist.recv_object_list(objects, src=0, device=device)
    equal(objects, [["foo", 12, {1: 2}]] * 2)


@of(2)
def batch_isend_irecv(rank: int) -> None:
    world_size = dist.get_world_size()
    send_tensor = torch.arange(2, dtype=torch.float32) + 2 * rank
    recv_tensor = torch.randn(2, dtype=torch.float32)
    send_op = dist.P2POp(dist.isend, send_tensor, (rank + 1) % world_size)
    recv_op = dist.P2POp(dist.irecv, recv_tensor, (rank - 1 + world_size) % world_size)
    for request in dist.batch_isend_irecv([send_op, recv_op]):
        request.wait()
    equal(recv_tensor, [torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])])


@of(2)
def coalescing(rank: int) -> None:
    """all_reduce of several tensors, waited for together."""
    tensors = [torch.ones(i + 1) for i in range(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    equal(tensors, [[torch.ones(i + 1) * 2 for i in range(4)]] * 2)


@of(2)
def a_future_of_an_average(rank: int) -> None:
    """A communication hook: a future of the averaged gradients."""
    group = dist.group.WORLD
    tensor = torch.tensor([1.0 + rank]).div_(group.size())  # type: ignore[union-attr]
    future = dist.all_reduce(tensor, group=group, async_op=True).get_future()  # type: ignore[union-attr]
    equal(future.then(lambda done: done.value()[0]).wait(), [torch.tensor([1.5])] * 2)


@of(2)
def all_reduce_multigpu(rank: int) -> None:
    tensor_list = [torch.FloatTensor([1]) for _ in range(8)]
    dist.all_reduce_multigpu(tensor_list)
    equal(tensor_list, [[torch.FloatTensor([16])] * 8] * 2)


@of(2)
def profiled(rank: int) -> None:
    with torch.profiler.profile() as profile:
        tensor = torch.randn(20, 10)
        dist.all_reduce(tensor)
    assert "gloo:all_reduce" in {event.name for event in profile.events()}


@of(2)
def monitored_barrier(rank: int) -> None:
    try:
        if dist.get_rank() != 1:
            dist.monitored_barrier(timeout=timedelta(seconds=0.2))
    except RuntimeError as error:
        assert "Rank 1 failed to pass monitoredBarrier in 200 ms" in str(error)
    else:
        assert dist.get_rank() == 1


# ---- three ranks ----


@of(3)
def objects(rank: int) -> None:
    gather_objects = ["foo", 12, {1: 2}]
    output: list[Any] = [None for _ in gather_objects]
    dist.all_gather_object(output, gather_objects[dist.get_rank()])
    equal(output, [gather_objects] * 3)
    output = [None for _ in gather_objects]
    dist.gather_object(gather_objects[dist.get_rank()], output if dist.get_rank() == 0 else None, dst=0)
    equal(output, [gather_objects, [None] * 3, [None] * 3])
    told = ["foo", 12, {1: 2}] if dist.get_rank() == 0 else [None, None, None]
    dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
    equal(told, [gather_objects] * 3)
    output_list: list[Any] = [None]
    dist.scatter_object_list(output_list, gather_objects if dist.get_rank() == 0 else [None] * 3, src=0)
    equal(output_list, [["foo"], [12], [{1: 2}]])


# ---- four ranks ----

UNEVEN_IN = ([2, 2, 1, 1], [3, 2, 2, 2], [2, 1, 1, 1], [2, 2, 2, 1])
UNEVEN_OUT = ([2, 3, 2, 2], [2, 2, 1, 2], [1, 2, 1, 2], [1, 2, 1, 1])
UNEVEN_ROWS = (torch.arange(6), torch.arange(9) + 10, torch.arange(5) + 20, torch.arange(7) + 30)
EXPECTED = ([0, 1, 10, 11, 12, 20, 21, 30, 31], [2, 3, 13, 14, 22, 32, 33], [4, 15, 16, 23, 34, 35], [5, 17, 18, 24, 36])


@of(4)
def monitored_barrier_of_all(rank: int) -> None:
    if dist.get_rank() == 0:
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=0.2), wait_all_ranks=True)
        except RuntimeError as error:
            assert "Ranks 1, 2, 3 failed to pass monitoredBarrier in 200 ms" in str(error)
        else:
            raise AssertionError("passed alone")


def scattered(output: list[torch.Tensor], input: list[torch.Tensor]) -> None:
    """What the documents call similar to an all_to_all."""
    for i in range(dist.get_world_size()):
        dist.scatter(output[i], input if i == dist.get_rank() else [], src=i)


@of(4)
def all_to_all_single(rank: int) -> None:
    input = torch.arange(4) + rank * 4
    output = torch.empty([4], dtype=torch.int64)
    dist.all_to_all_single(output, input)
    equal(output, [torch.tensor([r, r + 4, r + 8, r + 12]) for r in range(4)])
    scattered(list(output.fill_(-1).chunk(4)), list(input.chunk(4)))
    equal(output, [torch.tensor([r, r + 4, r + 8, r + 12]) for r in range(4)])
    output = torch.empty(sum(UNEVEN_OUT[rank]), dtype=torch.int64)
    dist.all_to_all_single(output, UNEVEN_ROWS[rank], list(UNEVEN_OUT[rank]), list(UNEVEN_IN[rank]))
    equal(output, [torch.tensor(row) for row in EXPECTED])
    input = torch.tensor([1 + 1j, 2 + 2j, 3 + 3j, 4 + 4j], dtype=torch.cfloat) + 4 * rank * (1 + 1j)
    with pytest.raises(ValueError, match="dtype"):  # as printed; torch refuses it too
        dist.all_to_all_single(torch.empty([4], dtype=torch.int64), input)
    output = torch.empty([4], dtype=torch.cfloat)
    dist.all_to_all_single(output, input)
    equal(output, [torch.tensor([n * (1 + 1j) for n in (r + 1, r + 5, r + 9, r + 13)]) for r in range(4)])


@of(4)
def all_to_all(rank: int) -> None:
    output = list(torch.empty([4], dtype=torch.int64).chunk(4))
    dist.all_to_all(output, list((torch.arange(4) + rank * 4).chunk(4)))
    equal(output, [[torch.tensor([n]) for n in (r, r + 4, r + 8, r + 12)] for r in range(4)])
    scattered(output, list((torch.arange(4) - rank * 4).chunk(4)))
    equal(output, [[torch.tensor([n]) for n in (r, r - 4, r - 8, r - 12)] for r in range(4)])
    output = [torch.empty(n, dtype=torch.int64) for n in UNEVEN_OUT[rank]]
    dist.all_to_all(output, list(UNEVEN_ROWS[rank].split(UNEVEN_IN[rank])))
    equal(torch.cat(output), [torch.tensor(row) for row in EXPECTED])
    input = torch.tensor([1 + 1j, 2 + 2j, 3 + 3j, 4 + 4j], dtype=torch.cfloat) + 4 * rank * (1 + 1j)
    output = list(torch.empty([4], dtype=torch.cfloat).chunk(4))
    dist.all_to_all(output, list(input.chunk(4)))
    equal(torch.cat(output), [torch.tensor([n * (1 + 1j) for n in (r + 1, r + 5, r + 9, r + 13)]) for r in range(4)])


def run(rank: int, folder: str, port: int) -> None:
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    for size, examples in sorted(EXAMPLES.items(), reverse=True):
        if rank >= size:
            return
        method = f"tcp://127.0.0.1:{port}" if size == 4 else f"file://{folder}/{size}"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size, timeout=LIMIT)
        for example in examples:
            example(rank)
        dist.barrier()
        dist.destroy_process_group()


def test_examples(tmp_path: Path) -> None:
    context = spawn(run, (str(tmp_path), free_port()), nprocs=4, join=False, start_method="forkserver")
    try:
        assert context.join(120), "the ranks hang"
    finally:
        context.close()

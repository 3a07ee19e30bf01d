"""Programs for torch.distributed as people write them. Each gives tensors that do not depend on the backend.

Called on every rank between init_process_group() and destroy_process_group(), with rank, size and an empty folder.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

Program = Callable[[int, int, Path], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def _data(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def _network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


# ---- collectives ----


@program
def reductions(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    found = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            x = torch.arange(1, 7, dtype=dtype) + rank % 2
            dist.all_reduce(x, op)
            found.append(x)
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        x = torch.arange(7) * (rank + 3)
        dist.all_reduce(x, op)
        found.append(x)
    strided = _data(rank, 4, 6).t()
    dist.all_reduce(strided)
    complex_numbers = torch.complex(_data(rank, 5), _data(rank + 9, 5))
    dist.all_reduce(complex_numbers)
    leaf = _data(rank, 3).requires_grad_()
    with torch.no_grad():
        dist.all_reduce(leaf)
    by_method = _data(rank, 3)
    dist.group.WORLD.allreduce(by_method, dist.ReduceOp.MAX).wait()
    dist.group.WORLD.broadcast([by_method]).wait()
    return [*found, strided, complex_numbers, leaf.detach(), by_method, *_with_roots(rank, size)]


def _with_roots(rank: int, size: int) -> list[torch.Tensor]:
    kept = _data(rank, 5)
    dist.reduce(kept, size - 1)
    shared = _data(rank, 2, 3)
    dist.broadcast(shared, size - 1)
    gathered = [torch.zeros(4) for _ in range(size)]
    dist.gather(_data(rank, 4), gathered if rank == 1 else None, 1)
    part = torch.zeros(3)
    dist.scatter(part, [_data(100 + r, 3) for r in range(size)] if rank == 0 else None, 0)
    return [kept if rank == size - 1 else torch.zeros(5), shared, *gathered, part]


@program
def movements(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    listed = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(listed, _data(rank, 2, 3))
    joined = torch.zeros(2 * size, 3)
    dist.all_gather_single(joined, _data(rank, 2, 3))
    part, single = torch.zeros(3), torch.zeros(2)
    dist.reduce_scatter(part, [_data(rank + r, 3) for r in range(size)])
    dist.reduce_scatter_single(single, _data(rank, 2 * size))
    turned = torch.zeros(size, 2)
    dist.all_to_all_single(turned, _data(rank, size, 2))
    rows = [torch.zeros(rank + 1, 2) for _ in range(size)]
    together = torch.zeros(size * (rank + 1), 2)
    dist.all_to_all_single(together, torch.cat([torch.full((r + 1, 2), float(rank)) for r in range(size)]),
                           [rank + 1] * size, [r + 1 for r in range(size)])
    return [*listed, joined, part, single, turned, together, *rows]


@program
def sparse(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    """Of different lengths, with an index twice, and in DistributedDataParallel, beside dense gradients."""
    x = torch.sparse_coo_tensor([[0, 3, 0, rank], [1, 2, 1, 0]], _data(rank, 4, 2), (6, 3, 2))
    dist.all_reduce(x)
    nothing = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (4,))
    some = nothing if rank else torch.sparse_coo_tensor([[2]], [1.5], (4,))
    work = dist.all_reduce(some, async_op=True)
    work.wait()
    torch.manual_seed(3)
    network = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2))
    model = DistributedDataParallel(network)
    for step in range(2):
        model(torch.tensor([rank, 5, 5, step])).pow(2).sum().backward()
        if step == 0:
            network.zero_grad()
    gradients = [p.grad for p in network.parameters()]
    return [x.coalesce().to_dense(), some.to_dense(), *(g.to_dense() for g in gradients)]


@program
def asynchronous(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    xs = [_data(rank + i, 50) for i in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    futures = [work.get_future() for work in works]
    doubled = [future.then(lambda done: done.value()[0] * 2) for future in futures]
    found = [future.wait() for future in doubled]
    for work in works:
        work.wait()
    assert all(work.is_completed() for work in works)
    late = works[0].get_future().wait()[0]
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    return [*xs, *found, late]


@program
def messages(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    after, before = (rank + 1) % size, (rank - 1) % size
    ring, x = torch.zeros(4), torch.full((4,), float(rank))
    ops = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, ring, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    found = torch.zeros(2)
    if rank == 0:
        sources = [dist.recv(found) for _ in range(1, size)]
        assert sorted(sources) == list(range(1, size))
        found.zero_()
    else:
        dist.send(torch.ones(2), 0)
    return [ring, found]


@program
def objects(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "pair": (1, {"two"})})
    assert everybody == [{"rank": r, "pair": (1, {"two"})} for r in range(size)]
    shared: list[Any] = [("a", torch.full((2,), rank))]
    dist.broadcast_object_list(shared, 1)
    return [shared[0][1]]


@program
def groups(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    found = []
    for _ in range(2):  # a name that is free again may be used again
        pair = dist.new_group([0, 1])
        x = _data(rank, 3)
        if rank < 2:
            dist.all_reduce(x, group=pair)
            dist.destroy_process_group(pair)
        found.append(x)
    mine = dist.new_group([rank], use_local_synchronization=True)
    x = _data(rank, 3)
    dist.all_reduce(x, group=mine)
    everybody = dist.new_group(list(range(size)))
    dist.broadcast(x, 1, group=everybody)
    return [*found, x]


@program
def coalescing(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    xs = [_data(rank + i, 10) for i in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_reduce_coalesced(xs)
    return xs


@program
def functional_collectives(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    world = dist.group.WORLD
    x = _data(rank, 2 * size, 3)
    found = [functional.all_reduce(x, "avg", world), functional.all_gather_single(x, 0, world),
             functional.reduce_scatter_single(x, "sum", 0, world), functional.all_to_all_single(x, None, None, world),
             functional.broadcast(x, 1, world), *functional.all_reduce_coalesced([x, x + 1], "sum", world)]
    # What torch.compile makes of all_gather_into_tensor and batch_isend_irecv.
    ops, name, after, before = torch.ops._c10d_functional, world.group_name, (rank + 1) % size, (rank - 1) % size
    found.append(ops.wait_tensor(ops.all_gather_into_tensor_out(x, size, name, out=torch.empty(size * len(x), 3))))
    messages = ops.batch_p2p_ops(["isend", "irecv"], [after, before], [0, 0], [x, torch.empty_like(x)], name)
    found += [ops.wait_tensor(message) for message in messages]
    leaf = _data(rank, size, 3).requires_grad_()
    (functional.all_to_all_single_autograd(leaf, None, None, world) * (rank + 1)).sum().backward()
    return [y + 0 for y in found] + [leaf.grad]


@program
def profiled(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    x, y = _data(rank, 4), _data(rank, 4)
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(x)
        dist.all_reduce(y, async_op=True).wait()
    assert sum(event.name.endswith(":all_reduce") for event in profile.function_events) >= 2, profile
    return [x, y]


# ---- data parallel ----


def train(model: Any, rank: int, steps: int = 3) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(_data(rank * 10 + step, 6, 8)), _data(rank + 77, 6, 4)).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.state_dict().values()]


@program
def data_parallel(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    found = []
    for options in ({}, {"bucket_cap_mb": 0.0001}, {"gradient_as_bucket_view": True}, {"static_graph": True},
                    {"find_unused_parameters": True, "broadcast_buffers": False}):
        found += train(DistributedDataParallel(_network(), **options), rank)
    return found


@program
def data_parallel_accumulates(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    model = DistributedDataParallel(_network())
    with model.no_sync():
        model(_data(rank, 6, 8)).sum().backward()
    model(_data(rank + 50, 6, 8)).sum().backward()
    return [p.grad for p in model.parameters()]


class Branches(nn.Module):
    """Which branch an input takes differs; the last one is for nobody."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.branches = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.branches[branch](self.first(x))


@program
def unused_parameters(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    """torch reduces in C++ which parameters a backward has reached."""
    found = []
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0001}):
        model = DistributedDataParallel(Branches(), find_unused_parameters=True, **options)
        for step in range(2):
            model.zero_grad()
            model(_data(rank + step, 6, 8), min(rank + step, 1)).sum().backward()
            assert model.module.branches[2].weight.grad is None
            found += [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return found


@program
def compiled(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    """DistributedDataParallel's collectives come to the backend from C++ while torch.compile looks at every frame."""
    return train(torch.compile(DistributedDataParallel(_network()), backend="eager"), rank)


@program
def communication_hooks(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    def mine(state, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / size)

    found = []
    for hook in (mine, default_hooks.allreduce_hook, default_hooks.fp16_compress_hook,  # torch takes bf16 on GPUs only
                 default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)):
        model = DistributedDataParallel(_network())
        model.register_comm_hook(None, hook)
        found += train(model, rank)
    model = DistributedDataParallel(_network())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return found + train(model, rank)


@program
def uneven_inputs(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    model = DistributedDataParallel(nn.Linear(8, 4, bias=False))
    with torch.no_grad():
        model.module.weight.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for step in range(2 + rank):
            optimizer.zero_grad()
            model(_data(step, 3, 8)).sum().backward()
            optimizer.step()
    return [model.module.weight.detach()]


@program
def sharded_optimizer(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    model = DistributedDataParallel(_network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(2):
        optimizer.zero_grad()
        model(_data(rank + step, 6, 8)).sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@program
def fully_sharded(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    found = []
    mesh = init_device_mesh("cpu", (size,))
    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.Linear(15, 4))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(2):
            model(_data(rank + step, 6, 8)).float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found += [p.full_tensor().detach() for p in model.parameters()]
    return found


# ---- tensors over a mesh, checkpoints ----


@program
def distributed_tensors(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("rows", "columns"))
    whole = _data(1, 2 * size, 3 * size)
    x = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    y = distribute_tensor(_data(2, 3 * size, 4), mesh, [Replicate(), Shard(0)])
    product = x @ y
    assert any(isinstance(place, Partial) for place in product.placements)
    flat = init_device_mesh("cpu", (size,))
    torch.manual_seed(5)
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    parallel = parallelize_module(copy.deepcopy(layers), flat, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    out = parallel(_data(4, 3, 8))
    out.sum().backward()
    return [product.full_tensor(), x.redistribute(mesh, [Shard(1), Replicate()]).full_tensor(), x.sum().full_tensor(),
            out.detach(), parallel[0].weight.grad.full_tensor()]


@program
def checkpoints(rank: int, size: int, folder: Path) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    model = nn.Linear(8, 6)
    fully_shard(model, mesh=mesh)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder / "one")
    checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=folder / "two").result()
    found = []
    for name in ("one", "two"):
        state = {"model": {key: torch.zeros_like(value) for key, value in model.state_dict().items()}}
        checkpoint.load(state, checkpoint_id=folder / name)
        found += [value.full_tensor() for value in state["model"].values()]
    return found

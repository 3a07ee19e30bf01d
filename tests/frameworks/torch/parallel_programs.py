"""Programs that use DistributedDataParallel or autograd-aware collectives, torch's or ours: the same results are expected.

Called on every rank with what an Api names. Each gives tensors.
"""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .programs import _data, _network, train


class Api(NamedTuple):
    ddp: Any
    hooks: Any
    powersgd: Any
    functional: Any
    dist: Any


Program = Callable[[Api, int, int], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


@program
def options(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    found = []
    for given in ({}, {"bucket_cap_mb": 0.0001}, {"gradient_as_bucket_view": True}, {"static_graph": True},
                  {"broadcast_buffers": False}, {"find_unused_parameters": True, "gradient_as_bucket_view": True}):
        model = _network()
        if rank:
            with torch.no_grad():
                model[0].weight.fill_(7.0)  # the first rank's count
        found += train(api.ddp(model, **given), rank)
    return found


@program
def accumulating(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    found = []
    for given in ({}, {"gradient_as_bucket_view": True}):
        model = api.ddp(_network(), **given)
        for _ in range(2):
            with model.no_sync():
                model(_data(rank, 6, 8)).sum().backward()
            found += [p.grad.clone() for p in model.parameters()]
            model(_data(rank + 50, 6, 8)).sum().backward()
            found += [p.grad.clone() for p in model.parameters()]
        with torch.no_grad():
            found.append(model(_data(rank, 6, 8)).mean())
    return found


@program
def forwards_between(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    """Of no gradient, or of one that is not averaged, while a backward that averages is still to come."""
    found = []
    for given in ({}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
        model = api.ddp(_network(), **given)
        for _ in range(2):
            loss = model(_data(rank, 6, 8)).sum()
            with torch.no_grad():
                model.eval()(_data(rank + 9, 6, 8))
                model.train()(_data(rank + 8, 6, 8))
            loss.backward()
            found += [p.grad.clone() for p in model.parameters()]
    model = api.ddp(_network())
    loss = model(_data(rank, 6, 8)).sum()
    with model.no_sync():
        loss = loss + model(_data(rank + 50, 6, 8)).sum()
    loss.backward()
    return found + [p.grad.clone() for p in model.parameters()]


@program
def copies(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    """Of a wrapped model, and what was pickled: they train on alone."""
    model = api.ddp(_network(), bucket_cap_mb=0.0001)
    train(model, rank)
    found = []
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        found += train(twin, rank) + [p.grad.clone() for p in twin.parameters()]
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    state = pickle.loads(pickle.dumps(api.powersgd.PowerSGDState(api.dist.group.WORLD, start_powerSGD_iter=2)))
    model = api.ddp(_network())
    model.register_comm_hook(state, api.powersgd.powerSGD_hook)
    model(_data(rank, 6, 8)).sum().backward()  # the first is averaged as it is
    return found + [p.detach().clone() for p in average.parameters()] + [p.grad.clone() for p in model.parameters()]


@program
def sparse_gradients(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    """Beside dense ones: of different rows on the ranks, of none, and added up."""
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.words, self.bags = nn.Embedding(20, 3, sparse=True), nn.EmbeddingBag(9, 3, sparse=True)
            self.last = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor, bag: int) -> torch.Tensor:
            return self.last(self.words(x).sum(0) + self.bags(torch.tensor([[bag, 4]])).sum(0))

    found = []
    for given in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = api.ddp(Words(), **given)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad(set_to_none=step != 1)
            x = torch.tensor([rank, 7, 7, 3 * step])[: 4 if rank else 3 * (step % 2)]
            if step == 2:
                with model.no_sync():
                    model(x + 2, rank).sum().backward()
            model(x, rank + step).pow(2).sum().backward()
            optimizer.step()
            found += [p.grad.to_dense().clone() for p in model.parameters()]
        found += [p.detach().clone() for p in model.parameters()]
    return found


class Branches(nn.Module):
    """Which branch an input takes differs; the last one is for nobody."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.branches = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, branch: int) -> dict[str, Any]:
        return {"out": [self.branches[branch](self.first(x))]}


@program
def unused_parameters(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    found = []
    for given in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0001}):
        model = api.ddp(Branches(), find_unused_parameters=True, **given)
        for step in range(3):
            model.zero_grad()
            model(_data(rank + step, 6, 8), min(rank + step, 1))["out"][0].sum().backward()
            assert model.module.branches[2].weight.grad is None
            found += [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]
    static = api.ddp(Branches(), static_graph=True)
    for _ in range(2):
        static.zero_grad()
        static(_data(rank, 6, 8), 1)["out"][0].sum().backward()
        found += [torch.zeros(1) if p.grad is None else p.grad.clone() for p in static.parameters()]
    return found


@dataclass
class Record:
    out: torch.Tensor
    more: Any


class InRecords(Branches):
    def forward(self, x: torch.Tensor, branch: int) -> Any:
        return Record(out=super().forward(x, branch)["out"][0], more=OrderedDict(nothing=None))


@program
def reached_inside_no_sync_only(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    """By all ranks, and by one; with outputs in a dataclass. Frozen layers, and those that are frozen later."""
    found = []
    for given in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0001}):
        model = api.ddp(InRecords(), find_unused_parameters=True, **given)
        for step in range(3):
            model.zero_grad()
            with model.no_sync():
                model(_data(rank, 6, 8), 1 if step else min(rank, 1)).out.pow(2).sum().backward()
            model(_data(rank + 9, 6, 8), 0).out.pow(2).sum().backward()
            found += [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]
        model.module.first.requires_grad_(False)
        model.zero_grad()
        model(_data(rank, 6, 8), 0).out.pow(2).sum().backward()
        found += [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return found


@program
def reentrant(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    """A layer that two reentrant checkpoints run: its gradient comes twice in a backward."""
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = checkpoint(self.layer, x, use_reentrant=True)
            return checkpoint(self.layer, x, use_reentrant=True)

    model = api.ddp(Twice(), static_graph=True)
    for _ in range(2):
        model.zero_grad()
        model(_data(rank, 6, 8).requires_grad_()).sum().backward()
    return [p.grad for p in model.parameters()]


@program
def hooks(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    found = []
    seen: list[tuple[int, bool, int]] = []

    def mine(state, bucket):  # without annotations: torch looks at them
        seen.append((bucket.index(), bucket.is_last(), len(bucket.gradients())))
        assert sum(p.numel() for p in bucket.parameters()) == bucket.buffer().numel()
        work = api.dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / size)

    for hook in (mine, api.hooks.allreduce_hook, api.hooks.fp16_compress_hook,
                 api.hooks.fp16_compress_wrapper(api.hooks.allreduce_hook)):
        model = api.ddp(_network())
        model.register_comm_hook(None, hook)
        found += train(model, rank)
    assert seen == [(0, True, 6)] * 3, seen
    return found


@program
def gradients_of_collectives(api: Api, rank: int, size: int) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def check(function: Callable[[torch.Tensor], Any]) -> None:
        x = _data(rank, 2 * size, 3).requires_grad_()
        ys = function(x)
        ys = ys if isinstance(ys, tuple) else (ys,)
        sum((y * _data(rank + 5 * i, *y.shape)).sum() for i, y in enumerate(ys)).backward()
        found.extend([*(y.detach() for y in ys), x.grad])

    f = api.functional
    check(lambda x: f.all_reduce(x))
    check(lambda x: f.all_gather(x))
    check(lambda x: f.broadcast(x, 1))
    check(lambda x: f.reduce_scatter(torch.empty(2, 3), list(x.split(2))))
    check(lambda x: f.all_to_all([torch.empty(2, 3) for _ in range(size)], list(x.split(2))))
    check(lambda x: f.all_to_all_single(torch.empty(2 * size, 3), x))
    # Of rank 0 uneven.
    rows = [[2 + (giver == 0) * ((taker == 0) - (taker == 1)) for taker in range(size)] for giver in range(size)]
    gives, takes = rows[rank], [row[rank] for row in rows]
    check(lambda x: f.all_to_all_single(torch.empty(sum(takes), 3), x, takes, gives))
    check(lambda x: f.scatter(list(x.split(2)), 0))
    x = _data(rank, 4).requires_grad_()
    kept = f.gather(x, 0)
    sum((y * _data(i, 4)).sum() for i, y in enumerate(kept)).backward()
    y = _data(rank, 4).requires_grad_()
    (f.reduce(y, 1) * _data(3, 4)).sum().backward()
    return [*found, x.grad, y.grad]

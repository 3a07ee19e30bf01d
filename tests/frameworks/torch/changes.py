"""DistributedDataParallel where modules change, answer in containers, or run backward in another order than torch's can.

python -m arraycomm.launch --nproc-per-node 2 changes.py. What is expected: each rank's own gradients, averaged.
"""

from __future__ import annotations

import copy
import faulthandler
import sys
import types
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import arraycomm
import arraycomm.distributed as dist
from arraycomm.frameworks.torch import DistributedDataParallel, comm_hooks

OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"find_unused_parameters": True, "bucket_cap_mb": 1e-5}, {"gradient_as_bucket_view": True}, {"static_graph": True})
Run = Callable[[Any], None]


def data(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(10 * seed + dist.get_rank()))


def averages(module: nn.Module, run: Run) -> list[torch.Tensor | None]:
    """What run(a copy of the module, as the first rank has it) adds to its gradients, on average. None: on no rank."""
    alone = copy.deepcopy(module)
    for x in (*alone.parameters(), *alone.buffers()):
        dist.broadcast(x.data, 0)
    run(alone)
    found: list[torch.Tensor | None] = []
    for p in alone.parameters():
        there = torch.tensor(int(p.grad is not None))
        dist.all_reduce(there)
        mean = torch.zeros_like(p) if p.grad is None else p.grad.clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        found.append(mean if there.item() else None)
    return found


def same(model: Any, run: Run) -> None:
    """run(model) leaves the averages in the module's gradients, and parameters that are alike."""
    model.zero_grad()
    expected = averages(model.module, run)
    run(model)
    torch.testing.assert_close([p.grad for p in model.module.parameters()], expected)
    first = [p.detach().clone() for p in model.module.parameters()]
    for p in first:
        dist.broadcast(p, 0)
    torch.testing.assert_close([p.detach() for p in model.module.parameters()], first, rtol=0, atol=0)


def quiet(model: Any) -> Any:
    """no_sync() of a DistributedDataParallel; of a module nothing."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else torch.enable_grad()


class Net(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.b(self.a(x.to(self.a.weight.dtype)).tanh()))


def step(seed: int) -> Run:
    return lambda model: model(data(seed, 3, 4)).square().sum().backward()


# ---- modules that change ----

def assign(model: Any) -> None:
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def assign_other(model: Any) -> None:
    """Of each rank's own; the first one's count."""
    model.module.load_state_dict(Net(7 + dist.get_rank()).state_dict(), assign=True)


def replace(model: Any) -> None:
    model.module.b = nn.Linear(4, 4)  # with more parameters, and of values of its own


def replace_one(model: Any) -> None:
    model.module.a.weight = nn.Parameter(torch.full((4, 4), 0.5))


def remove(model: Any) -> None:
    model.module.a.bias = None


def tie(model: Any) -> None:
    model.module.b.weight = model.module.a.weight


def swap(model: Any) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    model.double()
    model.float()
    torch.__future__.set_swap_module_params_on_conversion(False)


def larger(model: Any) -> None:
    """The same Parameter with another shape."""
    model.module.b.weight.data = torch.full((4, 4), 0.1)
    model.module.a.weight.data, model.module.a.bias.data = torch.ones(8, 4), torch.ones(8)
    model.module.b.weight.data = torch.full((4, 8), 0.25)


def freeze(model: Any) -> None:
    model.module.a.requires_grad_(False)


def unfreeze(model: Any) -> None:
    model.module.requires_grad_(True)


def other_half(model: Any) -> None:
    """As programs do that train two networks in turn."""
    model.module.a.requires_grad_(True)
    model.module.b.requires_grad_(False)


def no_training(model: Any) -> None:
    """All frozen for a step; the gradient goes through it."""
    model.requires_grad_(False)
    x = data(3, 3, 4).requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None and all(p.grad is None for p in model.parameters())
    model.requires_grad_(True)


def new_buffers(model: Any) -> None:
    model.module.norm = nn.BatchNorm1d(4)
    model.module.norm.running_mean.fill_(5.0 + dist.get_rank())


CHANGES: tuple[Callable[[Any], Any], ...] = (
    assign, assign_other, replace, replace_one, remove, tie, swap, larger, freeze, unfreeze, other_half, unfreeze, no_training,
    new_buffers, lambda model: model.double(), lambda model: model.float(), lambda model: model.bfloat16())


def follows_the_module() -> None:
    for given in (*OPTIONS, None):
        for change in CHANGES:
            model = DistributedDataParallel(Net(), **given or {})
            if given is None:
                model.register_comm_hook(None, comm_hooks.allreduce_hook)
            same(model, step(1))
            if change is unfreeze:  # what no DistributedDataParallel has seen unfrozen
                freeze(model)
                model = DistributedDataParallel(model.module, **given or {})
            model.zero_grad()
            change(model)
            for seed in (2, 3):
                if model.module.norm.weight.dtype is torch.bfloat16:
                    step(seed)(model)
                    assert {p.grad.dtype for p in model.parameters()} == {torch.bfloat16}
                else:
                    same(model, step(seed))
            with torch.no_grad():  # brings the first rank's statistics
                model.eval()(data(4, 3, 4))
            mine = torch.cat([b.double().reshape(-1) for b in model.module.buffers()])
            first = mine.clone()
            dist.broadcast(first, 0)
            assert torch.equal(mine, first), (change, mine, first)


def averages_in_the_dtype_of_now() -> None:
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    model.double()
    model(torch.full((1, 1), (dist.get_rank() + 1) / 3, dtype=torch.float64)).sum().backward()
    size = dist.get_world_size()
    assert model.module.weight.grad.item() == sum((rank + 1) / 3 for rank in range(size)) / size


def tells_of_a_change_on_one_rank() -> None:
    """All ranks hear of it."""
    for change in (assign, replace, freeze, lambda model: model.double()):
        group = dist.new_group()
        model = DistributedDataParallel(Net(), process_group=group, broadcast_buffers=False)
        step(1)(model)
        if dist.get_rank() == 1:
            change(model)
        try:
            step(2)(model)
        except arraycomm.CollectiveMismatch:
            pass
        else:
            raise AssertionError(change)
        dist.barrier()


# ---- outputs ----

@dataclass
class Record:
    left: Any
    right: Any


class Slots:
    __slots__ = ("left", "right")

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right


class Pair(NamedTuple):
    left: Any
    right: Any


class Kept(dict):  # type: ignore[type-arg]
    """As the outputs of large libraries: attributes are keys."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Items(list):  # type: ignore[type-arg]
    pass


def ring(left: Any, right: Any) -> list[Any]:
    found: list[Any] = [left, {"right": (None, [right])}]
    found.append(found)
    return found


def normal(left: Any, right: Any) -> torch.distributions.Normal:
    return torch.distributions.Normal(left, right)


def one_by_one(left: Any, right: Any) -> Iterator[Any]:
    yield left
    yield right


KINDS: dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    Record: (lambda y: y.left, lambda y: y.right),
    Slots: (lambda y: y.left, lambda y: y.right),
    Pair: (lambda y: y.left, lambda y: y.right),
    types.SimpleNamespace: (lambda y: y.left, lambda y: y.right),
    Kept: (lambda y: y.left, lambda y: y.right),
    OrderedDict: (lambda y: y["left"], lambda y: y["right"]),
    UserDict: (lambda y: y["left"], lambda y: y["right"]),
    Items: (lambda y: y[0], lambda y: y[1]),
    deque: (lambda y: y[0], lambda y: y[1]),
    ring: (lambda y: y[0], lambda y: y[1]["right"][1][0]),
    normal: (lambda y: y.loc, lambda y: y.scale),
    one_by_one: (next, next),
}


class Answers(nn.Module):
    """Two outputs in a container. Which branches there are differs between ranks and steps."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.kind, self.branches = kind, nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor, left: int, right: int) -> Any:
        y, z = self.branches[left](x), self.branches[right](x).exp()
        if self.kind in (Items, deque):
            return self.kind([y, z])
        return self.kind(left=y, right=z)


def finds_outputs_in_any_container() -> None:
    def both(kind: Any, seed: int) -> Run:
        def run(model: Any) -> None:
            y = model(data(seed, 3, 4), dist.get_rank() % 2, 2)
            first = KINDS[kind][0](y).sum()
            (first * KINDS[kind][1](y).sum()).backward()

        return run

    def in_turn(kind: Any) -> Run:
        """Two forwards before the first of two backwards."""
        def run(model: Any) -> None:
            losses = []
            for seed in (1, 2):
                y = model(data(seed, 3, 4), dist.get_rank() % 2, 2)
                losses.append(KINDS[kind][0](y).square().sum() + KINDS[kind][1](y).sum())
            for loss in losses:
                loss.backward()

        return run

    for kind in KINDS:
        model = DistributedDataParallel(Answers(kind), find_unused_parameters=True, bucket_cap_mb=1e-5)
        for seed in range(3):
            same(model, both(kind, seed))
            assert model.module.branches[3].weight.grad is None
        if kind is not one_by_one:  # nothing shows that it has a graph
            same(model, in_turn(kind))


# ---- gradients that add up ----

class Branches(Net):
    def forward(self, x: torch.Tensor, branch: str = "") -> torch.Tensor:  # type: ignore[override]
        for name in branch:
            x = getattr(self, name)(x)
        return x


def averages_what_only_no_sync_reached() -> None:
    def run(branches: list[str], last: str) -> Run:
        def steps(model: Any) -> None:
            with quiet(model):
                for place, branch in enumerate(branches):
                    model(data(place, 3, 4), branch).square().sum().backward()
            model(data(9, 3, 4), last).square().sum().backward()

        return steps

    mine = ["a", "b"][dist.get_rank() % 2]
    for given in OPTIONS[1:]:
        model = DistributedDataParallel(Branches(), **{**given, "find_unused_parameters": True})
        for _ in range(3):
            same(model, run(["a"], "b"))
        if "static_graph" in given:
            continue
        for branches, last in ((["a", "a"], "b"), ([mine], "b"), ([mine], mine), (["ab"], "b"), ([], mine), ([], "b")):
            same(model, run(branches, last))
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    expected = averages(model.module, run(["a"], "b"))
    for _ in range(2):  # without zero_grad(): what nobody reached stays
        run(["a"], "b")(model)
    step_grad = model.module.b.weight.grad
    torch.testing.assert_close(step_grad, 2 * expected[2])
    assert model.module.norm.weight.grad is None


def backward_in_any_order() -> None:
    def between(model: Any) -> None:
        """A whole step inside of no_sync() between a forward and its backward."""
        loss = model(data(1, 3, 4), "ab").sum()
        with quiet(model):
            model(data(2, 3, 4), "ba").square().sum().backward()
        loss.backward()

    def at_once(model: Any) -> None:
        loss = model(data(1, 3, 4), "b").sum()
        with quiet(model):
            loss = loss + model(data(2, 3, 4), "ba").square().sum()
        loss.backward()

    def twice(model: Any) -> None:
        loss = model(data(1, 3, 4), "ab").square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    def by_attributes(model: Any) -> None:
        """The loss does not come from the outputs."""
        found = []
        inside = getattr(model, "module", model)
        handle = inside.a.register_forward_hook(lambda *given: found.append(given[2]))
        model(data(1, 3, 4), "ab")
        handle.remove()
        (found[0].sum() + inside.b.weight.square().sum()).backward()

    def tied_in_the_loss(model: Any) -> None:
        """A parameter is used inside and outside of forward."""
        inside = getattr(model, "module", model)
        nn.functional.linear(model(data(1, 3, 4), "a"), inside.b.weight).square().sum().backward()

    def inside_of_checkpoints(model: Any) -> None:
        x = data(1, 3, 4).requires_grad_()
        y = checkpoint(lambda x: model(x, "a").tanh(), x, use_reentrant=False)
        checkpoint(lambda x: model(x, "b"), y, use_reentrant=False).square().sum().backward()

    for given in OPTIONS[:3]:
        looks = {**given, "find_unused_parameters": True}
        for run in (between, at_once, twice, by_attributes, tied_in_the_loss, inside_of_checkpoints):
            model = DistributedDataParallel(Branches(), **looks)
            for _ in range(2):
                same(model, run)
        module = Branches()
        module.norm = nn.Identity()  # type: ignore[assignment]
        for run in (between, twice, by_attributes):
            same(DistributedDataParallel(module, **given), run)


def a_rank_that_reaches_none() -> None:
    """Its backward goes through the input only, and takes part; another one's look at gradients of inputs does not count."""
    def run(model: Any) -> None:
        x = data(1, 3, 4).requires_grad_()
        model(x, "ab" if dist.get_rank() == 0 else "").square().sum().backward()

    model = DistributedDataParallel(Branches(), find_unused_parameters=True, broadcast_buffers=False)
    model.module.forward = lambda x, branch="": Branches.forward(model.module, x, branch) * 1  # type: ignore[method-assign]
    for _ in range(2):
        model.zero_grad()
        alone = Branches()
        alone.load_state_dict(model.module.state_dict())
        expected = averages(alone, lambda module: run(module) if dist.get_rank() == 0 else None)
        run(model)
        torch.testing.assert_close([p.grad for p in model.module.parameters()], expected)
        if dist.get_rank() == 1:
            x = data(1, 3, 4).requires_grad_()
            torch.autograd.grad(model(x, "ab").sum(), x)


def looks_at_gradients_of_inputs() -> None:
    """On one rank only: no backward of the others belongs to that."""
    def run(model: Any) -> None:
        with quiet(model):
            model(data(1, 3, 4), "ab").square().sum().backward()
        model(data(2, 3, 4), "ba").square().sum().backward()

    for given in OPTIONS[:3]:
        module = Branches()
        module.norm = nn.Identity()  # type: ignore[assignment]
        model = DistributedDataParallel(module, broadcast_buffers=False, **given)
        for _ in range(2):
            if dist.get_rank() == 0:
                x = data(3, 3, 4).requires_grad_()
                torch.autograd.grad(model(x, "ab").sum(), x)
                torch.autograd.grad(model(x, "ab").sum(), model.module.a.weight)
            same(model, run)


def refuses_computed_parameters() -> None:
    model = DistributedDataParallel(nn.Linear(2, 2))
    other = {f"module.{name}": p.detach() * 2 for name, p in model.module.named_parameters()}
    torch.func.functional_call(model, other, torch.ones(2))  # nothing to average
    given = {name: p.requires_grad_() * 2 for name, p in other.items()}
    try:
        torch.func.functional_call(model, given, torch.ones(2))
    except RuntimeError as error:
        assert "call the module inside" in str(error), error
    else:
        raise AssertionError("gradients that nobody would average")
    same(model, lambda model: model(data(1, 2)).sum().backward())


def main() -> None:
    faulthandler.dump_traceback_later(100, exit=True)
    dist.init_process_group()
    for check in (averages_in_the_dtype_of_now, follows_the_module, finds_outputs_in_any_container,
                  averages_what_only_no_sync_reached, backward_in_any_order, a_rank_that_reaches_none,
                  looks_at_gradients_of_inputs, refuses_computed_parameters, tells_of_a_change_on_one_rank):
        if len(sys.argv) == 1 or check.__name__ in sys.argv:
            check()
    print(f"rank {dist.get_rank()} is through")
    dist.barrier()
    dist.destroy_process_group()


main()

"""DistributedDataParallel where torch has no torch.distributed: python -m arraycomm.launch --nproc-per-node 2 alone.py"""

from __future__ import annotations

import faulthandler
import sys
import types
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo  # torch's optimizers import it, and it what this torch has
import torch.utils.checkpoint
from torch import nn

import arraycomm
import arraycomm.distributed as dist


class Absent(types.ModuleType):
    """torch.distributed of a torch that was built without it, and nothing else."""

    @staticmethod
    def is_available() -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AssertionError(f"torch.distributed.{name} is used")


faulthandler.dump_traceback_later(60, exit=True)
sys.modules["torch.distributed"] = torch.distributed = Absent("torch.distributed")  # type: ignore[assignment]

from arraycomm.frameworks.torch import DistributedDataParallel, autograd, bucket, comm_hooks, register  # noqa: E402

register()  # without effect


class TwoLinLayerNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(10, 10, bias=False), nn.Linear(10, 1, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.a(x), self.b(x)


def learns_from_all() -> None:
    """As one process that has everybody's data."""
    x = torch.randn(2 * dist.get_world_size(), 10, generator=torch.Generator().manual_seed(1))
    whole, shared = TwoLinLayerNet(), DistributedDataParallel(TwoLinLayerNet())
    for model, mine in ((whole, x), (shared, x[2 * dist.get_rank():][:2])):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(25):
            optimizer.zero_grad()
            a, b = model(mine)
            (a.square().mean() + (b - 1).square().mean()).backward()
            optimizer.step()
    torch.testing.assert_close(list(shared.module.parameters()), list(whole.parameters()), rtol=1e-5, atol=1e-6)


def names_unused_parameters() -> None:
    model = DistributedDataParallel(TwoLinLayerNet())
    x = torch.ones(2, 10)
    model(x)[1].sum().backward()
    try:
        model(x)
    except RuntimeError as error:
        told = str(error)
    assert f"did not receive grad for rank {dist.get_rank()}: a.weight\n" in told and told.endswith(f"{dist.get_rank()}: 0"), told


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        raise ZeroDivisionError


def goes_on_after_a_backward_that_raised() -> None:
    """After its last gradient, so that all buckets are under way; the program leaves this step out."""
    model = DistributedDataParallel(nn.Linear(3, 2))
    x = torch.full((1, 3), 1.0 + dist.get_rank())
    try:
        model(Fails.apply(x.clone().requires_grad_())).sum().backward()
    except ZeroDivisionError:
        model.zero_grad()
    model(x).sum().backward()
    mean = sum(range(1, dist.get_world_size() + 1)) / dist.get_world_size()
    torch.testing.assert_close(model.module.weight.grad, torch.full((2, 3), mean))


class Hurt(torch.autograd.Function):
    """Its backward raises where it is told to."""

    here = False

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if Hurt.here:
            raise ZeroDivisionError
        return gradient


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(Hurt.apply(self.first(x)))


def leaves_a_step_out_that_all_ranks_broke_off() -> None:
    """In the middle of backward, by a layer and by a communication hook: as if it had not been."""
    for hooked in (False, True):
        torch.manual_seed(1)
        model = DistributedDataParallel(Between(), bucket_cap_mb=1e-6)  # a bucket for each
        failing = [hooked]

        def hook(state: Any, bucket: Any, failing: list[bool] = failing) -> Any:
            if failing[0] and bucket.index() == 1:
                raise ZeroDivisionError
            return comm_hooks.allreduce_hook(None, bucket)

        model.register_comm_hook(None, hook)
        x = torch.full((1, 3), 1.0 + dist.get_rank())
        Hurt.here = not hooked
        for _ in range(2):
            try:
                model(x).sum().backward()
            except ZeroDivisionError:
                model.zero_grad()
            else:
                raise AssertionError("it did not raise")
        Hurt.here = failing[0] = False
        model(x).sum().backward()
        mean = sum(range(1, dist.get_world_size() + 1)) / dist.get_world_size()
        expected = model.module.second.weight.detach().reshape(2, 1).expand(2, 3) * mean
        torch.testing.assert_close(model.module.first.weight.grad, expected)


class Alike(Between):
    """Buckets of one size, which no comparison tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)


class Behind(Between):
    """Raises before its first gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Hurt.apply(super().forward(x))


def tells_all_ranks_of_a_step_that_one_broke_off() -> None:
    for network, looks in ((Between, False), (Alike, True), (Behind, False)):
        group = dist.new_group(list(range(dist.get_world_size())))
        model = DistributedDataParallel(network(), bucket_cap_mb=1e-6, process_group=group)
        x = torch.ones(1, 3)
        Hurt.here = dist.get_rank() == 1
        try:
            try:
                model(x).sum().backward()
            except ZeroDivisionError:
                Hurt.here = False
                with torch.set_grad_enabled(not looks):
                    model(x).sum()
                model(x).sum().backward()
        except arraycomm.CollectiveMismatch:
            pass
        else:
            raise AssertionError(f"no CollectiveMismatch with {network.__name__}, {looks}")


def does_not_mind_a_forward_without_backward() -> None:
    """On one rank only; nor one whose outputs are differentiated by themselves."""
    model = DistributedDataParallel(nn.Linear(3, 2))
    x = torch.ones(1, 3)
    if dist.get_rank() == 0:
        model(x)
        y = x.clone().requires_grad_()
        torch.autograd.grad(model(y).sum(), y)
    model(x * (1 + dist.get_rank())).sum().backward()
    mean = sum(range(1, dist.get_world_size() + 1)) / dist.get_world_size()
    torch.testing.assert_close(model.module.weight.grad, torch.full((2, 3), mean))


def does_not_mind_a_forward_inside_of_backward() -> None:
    """A checkpoint around the whole model runs it again there."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()))
    x = torch.full((1, 3), 1.0 + dist.get_rank())
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    mine = torch.autograd.grad(model.module(x).sum(), model.module[0].weight)[0]
    dist.all_reduce(mine, dist.ReduceOp.AVG)
    torch.testing.assert_close(model.module[0].weight.grad, mine)


def sparse_where_only_one_rank_reaches_it() -> None:
    """Nobody waits in forward, where its bucket is the first and at once full on the other rank."""
    torch.manual_seed(2)
    words, line, other = nn.Embedding(6, 2, sparse=True), nn.Linear(2, 1), dist.new_group(timeout=timedelta(seconds=20))
    model = DistributedDataParallel(nn.ModuleDict({"line": line, "words": words}), find_unused_parameters=True)
    model.module.forward = lambda x: line(words(x)) if dist.get_rank() == 0 else line(x)  # type: ignore[assignment]
    for backward in (False, True):
        loss = model(torch.tensor([3, 3]) if dist.get_rank() == 0 else torch.ones(2)).sum()
        dist.all_reduce(loss.detach().clone(), group=other)
        if backward:
            loss.backward()
    gradient = words.weight.grad
    assert gradient is not None and gradient.is_sparse and gradient.coalesce().indices().tolist() == [[3]]
    torch.testing.assert_close(gradient.to_dense()[3], 2 * line.weight[0].detach() / dist.get_world_size())


def sparse_on_another_device() -> None:
    """By the host, and back."""
    class Elsewhere:
        """A sparse tensor of a device, as far as it is used. Its parts are reached by cpu() only."""

        device, shape = torch.device("meta"), torch.Size((4,))

        def __init__(self, part: torch.Tensor | None = None) -> None:
            self._part = part

        def __getattr__(self, name: str) -> Any:
            part = {"indices": torch.tensor([[1, 3]]), "values": torch.ones(2)}.get(name)
            return (lambda: self) if name in ("detach", "coalesce") else lambda: 1 if part is None else Elsewhere(part)

        def cpu(self) -> torch.Tensor | None:
            return self._part

    total = bucket.all_reduce_sparse(dist.group.WORLD, Elsewhere(), "sum")
    assert total.device.type == "meta" and total.is_sparse and total._nnz() == 2 and total.shape == (4,)


def used_twice(model: Any, sparse: bool) -> None:
    """A gradient of another layout than the layer's."""
    model(torch.tensor([1]))
    nn.functional.embedding(torch.tensor([1]), model.module.weight, sparse=sparse).sum().backward()


def refuses() -> None:
    linear, sparse = nn.Linear(2, 2), DistributedDataParallel(nn.Embedding(4, 2, sparse=True))
    tied = DistributedDataParallel(nn.Embedding(4, 2))
    twice = DistributedDataParallel(nn.Linear(2, 2))
    text: Any = "x"
    wrong: list[tuple[type[Exception], str, Any]] = [
        (RuntimeError, "not needed", lambda: DistributedDataParallel(nn.ReLU())),
        (RuntimeError, "'weight', which is uninitialized", lambda: DistributedDataParallel(nn.LazyLinear(3))),
        (ValueError, "single-device GPU", lambda: DistributedDataParallel(linear, device_ids=[0])),
        (TypeError, "bucket_cap_mb must be a number of MiB", lambda: DistributedDataParallel(linear, bucket_cap_mb=text)),
        (RuntimeError, "params", lambda: DistributedDataParallel(nn.Linear(2, 2 + dist.get_rank()))),
        (RuntimeError, "has 2 params, while rank 1", lambda: DistributedDataParallel(nn.Linear(2, 2, dist.get_rank() == 0))),
        (RuntimeError, "same arguments on all ranks, but rank 0 has",
         lambda: DistributedDataParallel(nn.Linear(2, 2), find_unused_parameters=dist.get_rank() == 0)),
        (TypeError, "callable", lambda: DistributedDataParallel(linear).register_comm_hook(None, 3)),  # type: ignore[arg-type]
        (TypeError, "use SUM or AVG", lambda: autograd.all_reduce(torch.ones(2), dist.ReduceOp.MAX)),
        (RuntimeError, "without a hook", lambda: sparse.register_comm_hook(None, comm_hooks.allreduce_hook)),
        (RuntimeError, "gradient of weight is dense", lambda: used_twice(sparse, False)),
        (RuntimeError, "gradient of weight is sparse", lambda: used_twice(tied, True)),
        (RuntimeError, "create_graph=True", lambda: twice(torch.ones(2)).square().sum().backward(create_graph=True)),
    ]
    for kind, text, call in wrong:
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no {kind.__name__} about {text!r}")


def power_sgd_is_exact_for_few_samples() -> None:
    """One sample a rank makes gradients of rank 2 on two ranks: two columns hold them."""
    gradients = []
    for hook in (None, comm_hooks.powerSGD_hook, comm_hooks.fp16_compress_wrapper(comm_hooks.powerSGD_hook)):
        torch.manual_seed(3)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 20)), bucket_cap_mb=0.003)
        state = comm_hooks.PowerSGDState(matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
        if hook is not None:
            model.register_comm_hook(state, hook)
        for step in range(4):
            model.zero_grad()
            x = torch.randn(1, 20, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            model(x).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
        assert hook is None or len(state.qs) == 2, state.qs  # both buckets were approximated
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(gradients[2], gradients[0], rtol=5e-2, atol=5e-2)


def compresses_to_bfloat16() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    model.register_comm_hook(None, comm_hooks.bf16_compress_hook)
    model(torch.full((2, 4), 1 + 2.0**-12)).sum().backward()
    assert (model.module.weight.grad == 2.0).all()  # rounded


def main() -> None:
    dist.init_process_group()
    learns_from_all()
    names_unused_parameters()
    goes_on_after_a_backward_that_raised()
    leaves_a_step_out_that_all_ranks_broke_off()
    tells_all_ranks_of_a_step_that_one_broke_off()
    does_not_mind_a_forward_without_backward()
    does_not_mind_a_forward_inside_of_backward()
    sparse_where_only_one_rank_reaches_it()
    sparse_on_another_device()
    refuses()
    power_sgd_is_exact_for_few_samples()
    compresses_to_bfloat16()
    print(f"rank {dist.get_rank()} is through")
    dist.barrier()
    dist.destroy_process_group()


main()

"""Collectives with gradients where torch has no torch.distributed: python -m arraycomm.launch --nproc-per-node 2 alone.py"""

from __future__ import annotations

import faulthandler
import sys
import types
from typing import Any

import torch

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
sys.modules["torch.distributed"] = torch.distributed = Absent("torch.distributed")

from arraycomm.frameworks.torch import autograd, register, sparse  # noqa: E402

register()  # without effect


def gradients_flow() -> None:
    """That of a rank's input is the sum of all ranks' gradients."""
    x = torch.full((3,), 1.0 + dist.get_rank(), requires_grad=True)
    total = autograd.all_reduce(x)
    (total * (2 + dist.get_rank())).sum().backward()
    size = dist.get_world_size()
    assert total.tolist() == [sum(range(1, size + 1))] * 3
    assert x.grad is not None and x.grad.tolist() == [sum(range(2, size + 2))] * 3


def refuses() -> None:
    try:
        autograd.all_reduce(torch.ones(2), dist.ReduceOp.MAX)
    except TypeError as error:
        assert "use SUM or AVG" in str(error), error
    else:
        raise AssertionError("a gradient of MAX")


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

        def copy_(self, total: torch.Tensor) -> None:
            found.append(total)

    found: list[torch.Tensor] = []
    sparse.all_reduce_sparse(dist.group.WORLD, Elsewhere(), "sum")
    (total,) = found
    assert total.device.type == "meta" and total.is_sparse and total._nnz() == 2 and total.shape == (4,)


def main() -> None:
    dist.init_process_group()
    gradients_flow()
    refuses()
    sparse_on_another_device()
    print(f"rank {dist.get_rank()} is through")
    dist.barrier()
    dist.destroy_process_group()


main()

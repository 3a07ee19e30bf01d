"""Collectives with gradients, torch's over gloo and ours over arraycomm: python -m ... SIZE FOLDER, as ranks.py."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed
import torch.distributed.nn.functional

import arraycomm.distributed
from arraycomm.frameworks.torch import autograd

from .programs import _data
from .ranks import compare_each, main, prepare


def gradients_of_collectives(f: ModuleType, rank: int, size: int) -> list[torch.Tensor]:
    """f: the module with the functions."""
    found: list[torch.Tensor] = []

    def check(function: Callable[[torch.Tensor], Any]) -> None:
        x = _data(rank, 2 * size, 3).requires_grad_()
        ys = function(x)
        ys = ys if isinstance(ys, tuple) else (ys,)
        sum((y * _data(rank + 5 * i, *y.shape)).sum() for i, y in enumerate(ys)).backward()
        found.extend([*(y.detach() for y in ys), x.grad])

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


PROGRAMS = {"gradients_of_collectives": gradients_of_collectives}


def compare(rank: int, size: int, folder: str, names: list[str]) -> None:
    def run(name: str) -> tuple[Any, Any]:
        expected = PROGRAMS[name](torch.distributed.nn.functional, rank, size)
        return PROGRAMS[name](autograd, rank, size), expected

    prepare()
    apis: tuple[Any, Any] = torch.distributed, arraycomm.distributed
    for api, backend in zip(apis, ("gloo", None), strict=True):
        api.init_process_group(backend, init_method=f"file://{folder}/{api.__name__}", rank=rank, world_size=size)
    compare_each(rank, folder, names, run)
    for api in apis:
        api.barrier()
        api.destroy_process_group()


if __name__ == "__main__":
    main(compare, PROGRAMS)

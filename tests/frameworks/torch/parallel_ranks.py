"""The programs of parallel_programs.py over torch and gloo, and over arraycomm: python -m ... SIZE FOLDER, as ranks.py."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel would import it on each rank
import torch.distributed
import torch.distributed.nn.functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import arraycomm.distributed
from arraycomm.frameworks.torch import DistributedDataParallel, autograd, comm_hooks

from .parallel_programs import PROGRAMS, Api
from .ranks import compare_each, main, prepare

THEIRS = Api(torch.nn.parallel.DistributedDataParallel, default_hooks, powerSGD_hook, torch.distributed.nn.functional,
             torch.distributed)
OURS = Api(DistributedDataParallel, comm_hooks, comm_hooks, autograd, arraycomm.distributed)


def compare(rank: int, size: int, folder: str, names: list[str]) -> None:
    def run(name: str) -> tuple[Any, Any]:
        expected = PROGRAMS[name](THEIRS, rank, size)
        return PROGRAMS[name](OURS, rank, size), expected

    prepare()
    for number, (api, backend) in enumerate(((THEIRS, "gloo"), (OURS, None))):
        api.dist.init_process_group(backend, init_method=f"file://{folder}/{number}", rank=rank, world_size=size)
    compare_each(rank, folder, names, run)
    for api in (THEIRS, OURS):
        api.dist.barrier()
        api.dist.destroy_process_group()


if __name__ == "__main__":
    main(compare, PROGRAMS)

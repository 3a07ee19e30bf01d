"""The programs of parallel_programs.py over torch and gloo, and over arraycomm: python -m ... SIZE FOLDER, as ranks.py."""

from __future__ import annotations

import faulthandler
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel would import it on each rank
import torch.distributed
import torch.distributed.nn.functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import arraycomm.distributed
from arraycomm.frameworks.torch import DistributedDataParallel, autograd, comm_hooks
from arraycomm.launch.spawn import spawn

from .parallel_programs import PROGRAMS, Api
from .ranks import LIMIT

THEIRS = Api(torch.nn.parallel.DistributedDataParallel, default_hooks, powerSGD_hook, torch.distributed.nn.functional,
             torch.distributed)
OURS = Api(DistributedDataParallel, comm_hooks, comm_hooks, autograd, arraycomm.distributed)


def compare(rank: int, size: int, folder: str, names: list[str]) -> None:
    """Writes what went wrong into the file "errors-<rank>"."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for number, (api, backend) in enumerate(((THEIRS, "gloo"), (OURS, None))):
        api.dist.init_process_group(backend, init_method=f"file://{folder}/{number}", rank=rank, world_size=size)
    told = []
    for name in names:
        try:
            _compare(name, rank, size)
        except Exception:
            told.append(f"rank {rank}: {name}: {traceback.format_exc()}")
    Path(folder, f"errors-{rank}").write_text("\n".join(told))
    for api in (THEIRS, OURS):
        api.dist.barrier()
        api.dist.destroy_process_group()


def _compare(name: str, rank: int, size: int) -> None:
    expected: Any = PROGRAMS[name](THEIRS, rank, size)
    found = PROGRAMS[name](OURS, rank, size)
    torch.testing.assert_close(found, expected, **({"rtol": 2e-2, "atol": 2e-3} if name == "hooks" else
                                                   {"rtol": 1e-4, "atol": 1e-5}))


if __name__ == "__main__":
    spawn(compare, (int(sys.argv[1]), sys.argv[2], sys.argv[3:] or list(PROGRAMS)), nprocs=int(sys.argv[1]),
          start_method="fork")

"""The programs over gloo and over arraycomm, and what differed: python -m tests.frameworks.torch.ranks SIZE FOLDER

A process of its own that forks the ranks: what torch imports for these programs takes longer than the programs.
"""

from __future__ import annotations

import faulthandler
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel would import it on each rank
import torch.distributed as dist

import arraycomm.frameworks.torch  # noqa: F401 - registers the backend
from arraycomm.launch.spawn import spawn

from .programs import PROGRAMS

LIMIT = 100.0  # s; then every thread's stack is printed and the rank ends
# gloo rounds float16 after each addition, arraycomm once
TOLERANCES = {"communication_hooks": (2e-2, 2e-3)}


def prepare() -> None:
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def compare_each(rank: int, folder: str, names: list[str], run: Callable[[str], tuple[Any, Any]]) -> None:
    """run(name) -> (found, expected). Writes what went wrong into the file "errors-<rank>"."""
    told = []
    for name in names:
        relative, absolute = TOLERANCES.get(name, (1e-4, 1e-5))
        try:
            found, expected = run(name)
            torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)
        except Exception:
            told.append(f"rank {rank}: {name}: {traceback.format_exc()}")
    Path(folder, f"errors-{rank}").write_text("\n".join(told))


def compare(rank: int, size: int, folder: str, names: list[str]) -> None:
    def run(name: str) -> tuple[Any, Any]:
        expected = _run(name, "gloo", rank, size, Path(folder))
        return _run(name, "arraycomm", rank, size, Path(folder)), expected

    prepare()
    compare_each(rank, folder, names, run)


def _run(name: str, backend: str, rank: int, size: int, folder: Path) -> Any:
    mine = folder / f"{name}-{backend}"
    mine.mkdir(exist_ok=True)
    dist.init_process_group(backend, init_method=f"file://{mine}/store", rank=rank, world_size=size)
    try:
        assert dist.get_backend() == backend
        torch.manual_seed(rank)
        found = PROGRAMS[name](rank, size, mine)
        dist.barrier()
        return found
    finally:
        dist.destroy_process_group()


def main(compare: Callable[[int, int, str, list[str]], None], programs: Iterable[str]) -> None:
    size = int(sys.argv[1])
    spawn(compare, (size, sys.argv[2], sys.argv[3:] or list(programs)), nprocs=size, start_method="fork")


if __name__ == "__main__":
    main(compare, PROGRAMS)

"""torch.distributed.all_reduce over gloo and over arraycomm, in turns: python -m tests.frameworks.torch.beside_gloo RANKS

Prints, for each number of bytes of float32, the medians and gloo's time over ours: median (lowest-highest of the rounds).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

from arraycomm.launch.spawn import spawn

SIZES = (4, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24)
ROUNDS, ROUND_BYTES, MOST = 6, 4e6, 60  # a round has about this many bytes, and at most so many calls


def _time(x: torch.Tensor, group: Any, calls: int) -> float:
    dist.barrier(group=group)
    began = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(x, group=group)
    return (time.perf_counter() - began) / calls * 1e6


def measure(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    groups = {name: dist.new_group(backend=name) for name in ("gloo", "arraycomm")}
    for nbytes in SIZES:
        x = torch.zeros(nbytes // 4)
        calls = max(2, min(MOST, int(ROUND_BYTES / nbytes)))
        times: dict[str, list[float]] = {name: [] for name in groups}
        for number in range(ROUNDS + 1):
            for name in sorted(groups, reverse=bool(number % 2)):
                took = _time(x, groups[name], calls)
                if number:  # the first one warms up
                    times[name].append(took)
        if rank == 0:
            ratios = sorted(a / b for a, b in zip(times["gloo"], times["arraycomm"], strict=True))
            gloo, ours = (statistics.median(times[name]) for name in groups)
            print(f"{size} ranks, {nbytes:9d} bytes: gloo {gloo:9.1f} us, arraycomm {ours:9.1f} us, "
                  f"{statistics.median(ratios):.1f} ({ratios[0]:.1f}-{ratios[-1]:.1f})", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn(measure, (int(sys.argv[1]), folder), nprocs=int(sys.argv[1]), start_method="fork")

"""`python -m tests.gpu.overhead`: all_reduce beside a raw call of NCCL and torch.distributed's, interleaved.

Every round times each contender on the same array, by events on torch's current stream over many calls; printed are the
ratios of the rounds' medians, and their range. The raw call goes to the same communicator.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import statistics
import sys
from collections.abc import Callable

import arraycomm
from arraycomm.core import registry
from arraycomm.core.cuda.runtime import runtime

from . import frameworks

SIZES = [8 << (2 * step) for step in range(13)]  # 8 B to 128 MiB
ROUNDS, SHORT = 15, 1 << 20


def work(rank: int, nproc: int, port: int) -> None:
    import torch

    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=nproc)
    with arraycomm.init(backend="nccl") as group:
        communicator = group._communicator
        nccl, handle = communicator.nccl, communicator.handle
        if rank == 0:
            print(f"NCCL {nccl.version}, {torch.cuda.get_device_name()}, torch {torch.__version__}, {nproc} ranks")
            print(f"{'bytes':>12} {'ours us':>9} {'ours/raw':>24} {'ours/torch':>24}")
        for size in SIZES:
            x = torch.ones(size // 4, device="cuda")
            stream = torch.cuda.current_stream().cuda_stream or 1
            contenders: list[Callable[[], object]] = [
                lambda x=x: group.all_reduce(x, "max", out=x),
                lambda x=x, stream=stream: nccl.ncclAllReduce(x.data_ptr(), x.data_ptr(), x.numel(), 7, 2, handle.comm, stream),
                lambda x=x: torch.distributed.all_reduce(x, op=torch.distributed.ReduceOp.MAX)]
            rounds = [[timed(call, 200 if size < SHORT else 20) for call in contenders] for _ in range(ROUNDS + 1)][1:]
            x.fill_(1.0)
            if rank == 0:
                ours = statistics.median(row[0] for row in rounds)
                print(f"{size:12} {ours:9.2f} {ratios(rounds, 1):>24} {ratios(rounds, 2):>24}")
    torch.distributed.destroy_process_group()


def timed(call: Callable[[], object], calls: int) -> float:
    """Microseconds a call."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / calls


def ratios(rounds: list[list[float]], other: int) -> str:
    found = [row[0] / row[other] for row in rounds]
    return f"{statistics.median(found):.3f} ({min(found):.3f}-{max(found):.3f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.overhead", description=__doc__)
    parser.add_argument("--nproc", type=int, help="ranks; default: as many as GPUs, 2 at most. Ranks that share a GPU take turns "
                        "on it, which is most of their time, and need NCCL_MULTI_RANK_GPU_ENABLE=1")
    given = parser.parse_args()
    missing = registry.why_unavailable("nccl")
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    ranks = given.nproc or min(2, runtime().device_count())
    missing = frameworks.too_few(ranks)
    if importlib.util.find_spec("torch") is None:
        missing = "torch is not installed"
    if missing is not None:
        print(f"no comparison: {missing}")
        return 0
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arraycomm.spawn(work, (ranks, port), nprocs=ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())

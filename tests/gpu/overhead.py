"""all_reduce beside a raw call of NCCL from C and torch.distributed's, interleaved: `python -m tests.gpu.parts overhead 1`.

Every round times each contender on the same number of bytes, from an idle stream until it is idle again, over many calls; the
rows have the median of the rounds, and the ratios of each round's times with their range. The raw call goes to the same
communicator, from a loop in C.
"""

from __future__ import annotations

import ctypes
import importlib.util
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

import arraycomm
from arraycomm.core.arrays.dlpack import resolve
from arraycomm.core.gpu.runtime import runtime

from . import frameworks

SIZES = [8 << (2 * step) for step in range(14)]  # 8 B to 512 MiB
SECONDS, BLOCK, MOST = 60.0, 0.02, 200  # for all sizes; for one timing, and calls in it
_FLOAT32, _MAX = 7, 2  # ncclFloat32, ncclMax
# Compiled without any header, which a machine may lack.
_LOOP = """
typedef unsigned long word;
int loop(int (*call)(word, word, word, int, int, word, word), int (*state)(word, int *), word x, word count, word comm,
         word stream, int calls)
{
    int code = 0;
    while (calls-- > 0 && code == 0) {
        code = call(x, x, count, 7, 2, comm, stream);
        while (code == 7 && state(comm, &code) == 0) /* in progress: of a communicator that does not block */
            ;
    }
    return code;
}
"""


def compare(ranks: int, framework: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arraycomm.spawn(work, (ranks, framework, port), nprocs=ranks)


def work(rank: int, ranks: int, framework: str, port: int) -> None:
    name = frameworks.use(rank, framework)[0]
    standin = name == frameworks.STANDIN
    theirs = torch_reduction(rank, ranks, port, "cpu" if standin else "cuda")
    with arraycomm.init(backend="nccl", timeout=60) as group:
        if rank == 0:
            print(f"| bytes | ours us | raw us | torch us | ours / raw ({raw_kind()}) | ours / torch.distributed |")
            print("|---|---|---|---|---|---|", flush=True)
        sizes = SIZES[:3] if standin else SIZES
        for nbytes in sizes:
            row = measure(group, name, nbytes, theirs, (0.5 if standin else SECONDS) / len(sizes))
            if rank == 0:
                print(row, flush=True)
        group.barrier()
    if theirs is not None:
        import torch.distributed as dist

        dist.destroy_process_group()  # torch's threads may end a process that leaves with it


def torch_reduction(rank: int, ranks: int, port: int, device: str) -> Callable[[int], Callable[[int], None]] | None:
    """Of so many bytes, then so many calls; None without torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=ranks, timeout=timedelta(seconds=60))

    def reduction(nbytes: int) -> Callable[[int], None]:
        x = torch.ones(nbytes // 4, device=device)

        def calls(number: int) -> None:
            for _ in range(number):
                dist.all_reduce(x, op=dist.ReduceOp.MAX)

        return calls

    return reduction


def measure(group: arraycomm.Group, name: str, nbytes: int, theirs: Callable[[int], Callable[[int], None]] | None,
            seconds: float) -> str:
    """The row of one size."""
    x = frameworks.make(name, np.ones(nbytes // 4, np.float32))
    buffer = resolve(x)

    def ours(number: int) -> None:
        for _ in range(number):
            group.all_reduce(x, "max", out=x)

    def timed(calls: Callable[[int], None], number: int) -> float:
        """Microseconds a call."""
        runtime().synchronize(buffer.stream, buffer.device_index)
        begin = time.perf_counter()
        calls(number)
        runtime().synchronize(buffer.stream, buffer.device_index)
        return (time.perf_counter() - begin) * 1e6 / number

    contenders = [ours, raw(group, buffer), *([] if theirs is None else [theirs(nbytes)])]
    for _ in range(2):
        alone = max(timed(contender, 3) for contender in contenders)
    number = agreed(group, min(MOST, max(2, int(BLOCK * 1e6 / alone))))
    number_of_rounds = agreed(group, min(25, max(5, int(seconds * 1e6 / (alone * number * len(contenders))))))
    rounds = [[timed(contender, number) for contender in contenders] for _ in range(number_of_rounds)]
    return row(nbytes, rounds)


def agreed(group: arraycomm.Group, number: int) -> int:
    """Rank 0's."""
    return int(group.broadcast(np.array([number]))[0])


def row(nbytes: int, rounds: list[list[float]]) -> str:
    medians = [f"{statistics.median(times):.2f}" for times in zip(*rounds, strict=True)]
    ratios = []
    for other in range(1, len(rounds[0])):
        found = [times[0] / times[other] for times in rounds]
        ratios.append(f"{statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})")
    if len(medians) < 3:
        medians, ratios = [*medians, "-"], [*ratios, "-"]
    return f"| {nbytes} | {' | '.join(medians)} | {' | '.join(ratios)} |"


# ---- the raw call ----


def compiled() -> Any:
    """The loop in C; None where no compiler makes it."""
    with tempfile.TemporaryDirectory(prefix="raw-nccl-") as folder:
        source, library = Path(folder, "loop.c"), Path(folder, "loop.so")
        source.write_text(_LOOP)
        for compiler in ("cc", "gcc", "clang"):
            try:
                subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-nostdlib", str(source), "-o", str(library)], check=True,
                               capture_output=True, timeout=60)
                return ctypes.CDLL(str(library))  # stays loaded when its file goes
            except (OSError, subprocess.SubprocessError):
                continue
    return None


_loops: list[Any] = []


def loop() -> Any:
    if not _loops:
        _loops.append(compiled())
    return _loops[0]


def raw_kind() -> str:
    return "from C" if loop() is not None else "from Python by cffi: no C compiler works here"


def raw(group: arraycomm.Group, buffer: Any) -> Callable[[int], None]:
    communicator: Any = group._communicator
    nccl, comm, count, in_c = communicator.nccl, communicator.handle.comm, buffer.nbytes // 4, loop()
    if in_c is None:
        def from_python(number: int) -> None:
            for _ in range(number):
                code = nccl.ncclAllReduce(buffer.address, buffer.address, count, _FLOAT32, _MAX, comm, buffer.stream)
                communicator.handle.settle(code, "ncclAllReduce", 60.0)

        return from_python
    functions = [int(nccl.ffi.cast("uintptr_t", nccl.ffi.addressof(nccl._lib, name)))
                 for name in ("ncclAllReduce", "ncclCommGetAsyncError")]
    arguments = [ctypes.c_ulong(value) for value in (*functions, buffer.address, count, comm, buffer.stream)]

    def from_c(number: int) -> None:
        code = in_c.loop(*arguments, number)
        assert code == 0, f"the raw ncclAllReduce gave {code}"

    return from_c

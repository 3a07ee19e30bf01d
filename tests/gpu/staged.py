"""Arrays on a GPU over the socket engine, beside bare copies of pinned memory: `python -m tests.gpu.parts staged 2`.

The copies are timed on all ranks at once, as the operations are: ranks that share a GPU share its bus.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

import arraycomm
from arraycomm.core.arrays.dlpack import resolve
from arraycomm.core.gpu.runtime import TO_DEVICE, TO_HOST, runtime

from . import frameworks

NBYTES, ROUNDS = 256 << 20, 7


def compare(ranks: int, framework: str) -> None:
    arraycomm.spawn(work, (framework, 1 << 20 if framework == frameworks.STANDIN else NBYTES), nprocs=ranks)


def work(rank: int, framework: str, nbytes: int) -> None:
    name = frameworks.use(rank, framework)[0]
    cuda, device = runtime(), runtime().device()
    x, out = (frameworks.make(name, np.ones(nbytes // 4, np.float32)) for _ in range(2))
    pinned, there, stream = cuda.host_alloc(nbytes), resolve(x).address, cuda.stream(device)
    with arraycomm.init(backend="socket", timeout=60) as group:
        def copy(kind: int) -> None:
            cuda.copy(*((pinned, there) if kind == TO_HOST else (there, pinned)), nbytes, kind, stream)
            cuda.synchronize(stream, device)

        for root in range(group.size):
            y = frameworks.make(name, np.full(nbytes // 4, float(rank), np.float32))
            assert (frameworks.back(group.broadcast(y, root)) == root).all(), f"broadcast from {root}"
            total = frameworks.back(group.all_reduce(y))
            assert (total == sum(range(group.size))).all(), f"all_reduce: {total}"
        group.broadcast(x, out=out)
        frameworks.back(x)  # it is there
        calls: dict[str, Callable[[], object]] = {
            "copy to pinned memory": lambda: copy(TO_HOST), "copy from it": lambda: copy(TO_DEVICE)}
        calls |= {"all_reduce": lambda: group.all_reduce(x, out=out),
                  "reduce_scatter": lambda: group.reduce_scatter(x, out=out[: len(out) // group.size]),
                  "broadcast": lambda: group.broadcast(x, out=out)}
        rounds = [{what: timed(group, call) for what, call in calls.items()} for _ in range(ROUNDS + 1)][1:]
        assert float(frameworks.back(out)[-1]) in (1.0, float(group.size))
        if rank == 0:
            print(f"| {nbytes >> 20} MiB | GB/s | of the slower copy's bandwidth, in % |\n|---|---|---|")
            for what in calls:
                shares = [100 * max(times["copy to pinned memory"], times["copy from it"]) / times[what] for times in rounds]
                rate = nbytes / statistics.median(times[what] for times in rounds) / 1e9
                print(f"| {what} | {rate:.2f} | {statistics.median(shares):.0f} ({min(shares):.0f} to {max(shares):.0f}) |",
                      flush=True)
        group.barrier()
    cuda.free_host(pinned)


def timed(group: arraycomm.Group, call: Callable[[], object]) -> float:
    """Seconds."""
    group.barrier()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin

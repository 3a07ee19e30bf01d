"""What the NCCL backend's own code costs: `python -m tests.standin.binding`. NCCL and CUDA's runtime do nothing here (null.c), so
that only our part of a call is left. It is no figure of a GPU's."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import arraycomm
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DeviceType, DType

from . import build

STREAM, CALLS, ROUNDS = 64, 2000, 15


def operations(group: arraycomm.Group) -> dict[str, Callable[[], object]]:
    """Of an array that lies on a device, with its stream known, as torch's and CuPy's."""
    x = Buffer(1 << 40, 1024, int(DType.FLOAT32), int(DeviceType.CUDA), 0, False, (1024,), None, STREAM)
    communicator: Any = group._communicator
    nccl, comm = communicator.nccl, communicator.handle.comm
    return {"all_reduce": lambda: group.all_reduce(x, out=x),
            "all_reduce, asynchronous, and wait()": lambda: group.all_reduce(x, out=x, async_op=True).wait(),
            "ncclAllReduce by cffi alone": lambda: nccl.ncclAllReduce(x.address, x.address, 1024, 7, 0, comm, STREAM)}


def nanoseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - begin) / CALLS


def counted(call: Callable[[], object]) -> tuple[int, int]:
    """How often it enters a function of Python's and of C's. The least of some calls in all: now and then one forgets what has
    ended, which asks about dozens of events by C alone."""
    return min((_counted(call) for _ in range(5)), key=sum)


def _counted(call: Callable[[], object]) -> tuple[int, int]:
    found: Counter[str] = Counter()

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        found[event] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found["call"], found["c_call"] - 1  # setprofile itself


def opened() -> arraycomm.Group:
    os.environ["ARRAYCOMM_CUDART_LIBRARY"] = os.environ["ARRAYCOMM_NCCL_LIBRARY"] = build.null()
    return arraycomm.init(backend="nccl")


def main() -> int:
    with opened() as group:
        rounds = [{name: nanoseconds(call) for name, call in operations(group).items()} for _ in range(ROUNDS)]
        for name, call in operations(group).items():
            times, (python, c) = [times[name] for times in rounds], counted(call)
            print(f"{name}: {statistics.median(times):.0f} ns ({min(times):.0f} to {max(times):.0f}), {python} Python and {c} C "
                  "functions")
    return 0


if __name__ == "__main__":
    sys.exit(main())

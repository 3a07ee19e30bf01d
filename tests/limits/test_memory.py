"""Operations allocate nothing in steady state, and large ones need little scratch."""

from __future__ import annotations

import pytest

from ..faults.job import Job
from . import tasks

MIB = 1 << 20


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("count", [8, 20_000])
def test_steady_state(transport: str, count: int) -> None:
    """10 kinds of calls, 1,000 times each: a leak of two bytes a call would show."""
    with Job(2, transport, tasks=tasks) as job:
        for rank, (python, engine, resident) in job.call("steady", count=count, warm=50, turns=1000, limit=120).items():
            print(f"rank {rank}: Python {python} B, C {engine} B, resident {resident} B")
            assert python < 2000 and engine < 16_384 and resident < MIB


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 4])
def test_scratch_of_256_mib(transport: str, size: int) -> None:
    """Less than 64 MiB for all ranks of the host together, with the shared memory counted by each that touched it."""
    with Job(size, transport, tasks=tasks) as job:
        job.call("scratch", count=1)
        total = sum(job.call("peak_scratch", count=256 * MIB // 4, limit=120).values())
        print(f"{total / MIB:.1f} MiB")
        assert total < 64 * MIB

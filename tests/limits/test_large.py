"""Arrays of more than 2^32 bytes and 2^30 elements, in the operations whose parts lie at large offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..faults.job import Job
from . import tasks

COUNT = (1 << 30) + 6
NEEDED = 12 << 30


def _available() -> int:
    """Bytes of memory that can be had without swapping."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


@pytest.mark.skipif(_available() < NEEDED, reason=f"needs {NEEDED >> 30} GiB of free memory")
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_parts_at_large_offsets(transport: str) -> None:
    with Job(2, transport, tasks=tasks) as job:
        job.call("gather_and_scatter_large", count=COUNT, limit=120)

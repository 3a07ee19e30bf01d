"""Groups that are made and closed leave descriptors, threads, files and memory where they were."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..faults.job import Job
from . import tasks

RESIDENT, ALLOCATED = 1 << 20, 100_000  # bytes: the allocator keeps some of what was freed; the last goodbyes are kept


@pytest.fixture(params=["shm", "tcp"])
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    with Job(2, request.param, opened=False, tasks=tasks) as job:
        yield job


def _files() -> list[str]:
    """Where names could be left: shared memory, and the directory of the Unix sockets."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), f"arraycomm-{os.geteuid()}")
    return sorted(os.listdir("/dev/shm")) + sorted(os.listdir(folder) if folder.exists() else [])


def _unchanged(job: Job, task: str, **parameters: object) -> None:
    before = job.call("held")
    job.call(task, **parameters, limit=120)
    for rank, (holdings, memory) in job.call("held").items():
        assert holdings == before[rank][0]
        resident = memory.private - before[rank][1].private
        allocated = memory.allocated - before[rank][1].allocated
        print(f"rank {rank}: {resident >> 10} KiB more resident, {allocated} B more allocated")
        assert resident < RESIDENT and allocated < ALLOCATED and memory.shared == before[rank][1].shared


def test_a_thousand_groups(job: Job) -> None:
    job.call("open_group")
    job.call("split_again_and_again", turns=30)
    _unchanged(job, "split_again_and_again", turns=1000)


def test_groups_of_one_name(job: Job) -> None:
    """A name may be used again when its group is closed."""
    job.call("open_group")
    job.call("split_again_and_again", turns=10, name="part")


def test_many_inits(job: Job) -> None:
    files = _files()
    job.call("init_again_and_again", turns=10)
    _unchanged(job, "init_again_and_again", turns=200)
    assert set(_files()) <= set(files)  # those of processes that were killed before may have gone

"""Groups that are made and closed leave descriptors, threads, files and memory where they were."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..faults.job import Job
from . import tasks

RESIDENT, ALLOCATED = 1 << 20, 100_000  # bytes: the allocator keeps some of what was freed; the last goodbyes are kept


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the ranks' Unix sockets lie, and no others': a short path, as sockets want it."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(params=["shm", "tcp"])
def job(request: pytest.FixtureRequest, folder: Path) -> Iterator[Job]:
    with Job(2, request.param, {"XDG_RUNTIME_DIR": str(folder)}, opened=False, tasks=tasks) as job:
        yield job


def _files(job: Job, folder: Path) -> set[str]:
    """Names that the ranks could leave: of Unix sockets, and of shared memory, where other tests' have theirs."""
    ours = re.compile("arraycomm|" + "|".join(rf"(?<!\d){process.pid}(?!\d)" for process in job.processes))
    return {str(path) for path in folder.rglob("*")} | {name for name in os.listdir("/dev/shm") if ours.search(name)}


def _unchanged(job: Job, task: str, **parameters: Any) -> None:
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
    job.call("split_again_and_again", turns=150)  # once round the slots of a seat, whose pages come with their first use
    _unchanged(job, "split_again_and_again", turns=1000)


def test_groups_of_one_name(job: Job) -> None:
    """A name may be used again when its group is closed."""
    job.call("open_group")
    job.call("split_again_and_again", turns=10, name="part")


def test_many_inits(job: Job, folder: Path) -> None:
    job.call("open_group")
    assert len(_files(job, folder)) > 1  # the folder, and sockets in it
    job.call("close_group")
    job.call("init_again_and_again", turns=10)
    files = _files(job, folder)
    _unchanged(job, "init_again_and_again", turns=200)
    assert _files(job, folder) == files

"""System calls that a container's filter forbids: what does not need them works, and an error does not blame a limit."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RANK = str(HERE / "forbidden_rank.py")
LIMIT = 120.0  # s; only ends what hangs


def run(calls: str, number: int, transport: str, *program: str) -> subprocess.CompletedProcess[str]:
    command = program or ("-m", "arraycomm.launch", "--no-prefix", "--nproc-per-node", "2", RANK)
    return subprocess.run([sys.executable, str(HERE / "forbidding.py"), str(number), calls, sys.executable, *command],
                          env={**os.environ, "ARRAYCOMM_TRANSPORT": transport}, capture_output=True, text=True, timeout=LIMIT,
                          check=False)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_no_memory_files(transport: str, number: int) -> None:
    """The launcher hands the secret down in another file, and ranks of one host talk TCP. They say so unless it was asked for."""
    done = run("memfd_create", number, transport)
    assert done.returncode == 0 and done.stdout == "all right\n" * 2, done.stdout + done.stderr
    assert done.stderr.count("no shared memory, so this process uses TCP") == 2 * (transport == "auto"), done.stderr


def test_shared_memory_without_memory_files() -> None:
    done = run("memfd_create", errno.EPERM, "shm")
    assert done.returncode == 1 and "memfd_create: Operation not permitted" in done.stderr, done.stderr
    assert "seccomp" in done.stderr and "ARRAYCOMM_TRANSPORT=tcp" in done.stderr and "ulimit" not in done.stderr, done.stderr


def test_spawn_without_memory_files() -> None:
    code = "import arraycomm, tests.limits.test_forbidden as t; arraycomm.spawn(t.opens, nprocs=2)"
    done = run("memfd_create", errno.EPERM, "tcp", "-c", code)
    assert done.returncode == 0, done.stderr


def opens(_: int) -> None:
    import arraycomm

    with arraycomm.init(timeout=30) as group:
        group.barrier()


@pytest.mark.parametrize("calls", ["process_vm_readv,process_vm_writev", "pidfd_open", "mbind,sched_getaffinity", "madvise",
                                   "io_uring_setup,pidfd_open,process_vm_readv,process_vm_writev"])
def test_calls_that_can_be_done_without(calls: str) -> None:
    done = run(calls, errno.EPERM, "auto")
    assert done.returncode == 0 and done.stdout == "all right\n" * 2, done.stdout + done.stderr
    assert "TCP" not in done.stderr, done.stderr


def test_a_launcher_hears_of_an_end_without_pidfd() -> None:
    done = run("pidfd_open", errno.ENOSYS, "auto", "-m", "arraycomm.launch", "--no-python", "--nproc-per-node", "2",
               "sh", "-c", 'test "$RANK" = 0 && exit 7; exec sleep 600')
    assert done.returncode == 7 and "rank 0" in done.stderr, done.stderr


def test_calls_that_nothing_replaces() -> None:
    done = run("epoll_create1", errno.EPERM, "tcp")
    assert done.returncode == 1 and "seccomp" in done.stderr and "ulimit" not in done.stderr, done.stderr

"""What belongs to the program stays its own: affinity, priority, signals, locale, umask, environment, and more of that kind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from arraycomm import _engine

LIMIT = 120.0  # s; only ends what hangs
ROOT = Path(__file__).resolve().parents[2]
RANK = Path(__file__).with_name("untouched_rank.py")
# Functions of the C library that change something of the whole process, or where and when a thread runs.
FOREIGN = re.compile(
    r"sched_set\w*|pthread_setaffinity_np|pthread_setsched\w*|pthread_attr_set(affinity|sched|inherit)\w*|set_mempolicy|nice|setpriority"
    r"|signal|sigaction|sigaltstack|sigprocmask|bsd_signal|sysv_signal|setitimer|timer_create|alarm|setlocale|umask|chdir|fchdir|chroot"
    r"|setenv|putenv|unsetenv|clearenv|setrlimit|prlimit|prctl|personality|setsid|setpgid|set\w*[ug]id|fesetround|fesetenv|mlockall"
    r"|mallopt|dup2|unshare|setns")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_process_is_as_it_was(transport: str) -> None:
    """More ranks than most machines that run this have processors, so that ranks take turns."""
    done = subprocess.run(
        [sys.executable, "-m", "arraycomm.launch", "--no-prefix", "--nproc-per-node", "3", str(RANK)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "ARRAYCOMM_TRANSPORT": transport},
        capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout == "untouched\n" * 3, done.stdout + done.stderr


def test_the_engine_calls_nothing_that_changes_it() -> None:
    library = Path(_engine.__file__).read_bytes()
    names = set(re.findall(rb"(?<=\0)[a-z_][a-z0-9_]+(?=\0)", library))
    assert {b"pthread_create", b"mmap", b"sched_yield"} <= names  # which it does call
    foreign = sorted(name.decode() for name in names if FOREIGN.fullmatch(name.decode()))
    assert foreign == ["sigaction"], foreign
    # Under JAX's own collectives, of SIGABRT, once another process is lost: docs/guide/jax.md, "Errors".
    sources = [path for top in ("arraycomm", "backends") for path in (ROOT / top).rglob("*.c")]
    assert [path.name for path in sources if "sigaction(" in path.read_text()] == ["mpi_last_word.c"]

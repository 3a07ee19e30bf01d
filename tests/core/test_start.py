"""core/group/start.py: what init() refuses before it meets anybody, and how long it may be told to wait."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arraycomm
from tests.logged import logged


@pytest.mark.parametrize(("timeout", "error", "text"), [
    (0, ValueError, "above 0"), (timedelta(0), ValueError, "above 0"), (-1.0, ValueError, "-1.0"),
    (float("nan"), ValueError, "nan"), ("1", TypeError, "number of seconds"), (True, TypeError, "True"),
    ([1], TypeError, "seconds"),
])
def test_a_timeout_that_makes_no_sense(timeout: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        arraycomm.init(timeout=timeout)


def _with_peers(rank: int) -> None:
    with arraycomm.init(timeout=float("inf")) as group:
        part = group.subgroup([0, 1], "part", timeout=float("inf"))
        assert part.all_reduce(np.array([rank])).tolist() == [1]


def test_a_timeout_without_end_with_peers() -> None:
    """What connects them takes no longer ones than the system's calls."""
    arraycomm.spawn(_with_peers, nprocs=2)


@pytest.mark.parametrize("timeout", [float("inf"), 1e30, timedelta.max, 5, np.float32(5)])
def test_a_timeout_of_any_length(timeout: Any) -> None:
    x = np.ones(3)
    with arraycomm.init(timeout=timeout) as group:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        assert group.all_reduce(x, timeout=seconds).tolist() == x.tolist()
        group.barrier(timeout=seconds)


def test_init_says_one_line_at_info(tmp_path: Path) -> None:
    """And nothing at warning, which is the default, or where nobody has loaded `logging`: nor is that loaded then."""
    program = """
import sys, {loaded}
import arraycomm
if "logging" in sys.modules: logging.basicConfig(level={level}, format="%(levelname)s %(name)s %(message)s")
with arraycomm.init(rank=0, world_size=1, init_method=f"file://{store}") as group, group.split(color=0):
    print("logging" in sys.modules)
"""
    line = f"INFO arraycomm group 'world' is open: rank 0 of 1, backend socket, shared memory, host {socket.gethostname()}\n"
    for number, (loaded, level, said) in enumerate((("logging", "20", line), ("logging", "30", ""), ("os", "20", ""))):
        text = program.format(loaded=loaded, level=level, store=tmp_path / str(number))
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{loaded == 'logging'}\n", said)


def _told(rank: int) -> None:
    logging.getLogger("arraycomm").setLevel(logging.INFO)
    with logged() as lines, arraycomm.init():
        assert lines == [f"group 'world' is open: rank {rank} of 2, backend socket, TCP on one host, host {socket.gethostname()}"]


def _bound(rank: int, to: Sequence[int], oversubscribed: bool) -> None:
    os.sched_setaffinity(0, {to[rank]})
    logging.getLogger("arraycomm").setLevel(logging.INFO)
    with logged() as lines, arraycomm.init():
        assert lines[0].endswith("whose ranks here cannot have a processor each") == oversubscribed


def test_the_line_tells_of_ranks_that_share_a_processor() -> None:
    """As of ranks that a launcher has bound all to the same one; and not of those that it has bound to one each."""
    allowed = sorted(os.sched_getaffinity(0))
    first, last = allowed[0], allowed[-1]
    arraycomm.spawn(_bound, ((first, first), True), nprocs=2)
    arraycomm.spawn(_bound, ((first, last), first == last), nprocs=2)


def test_the_line_tells_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_TRANSPORT", "tcp")
    arraycomm.spawn(_told, nprocs=2)


def test_a_group_stays_in_its_process() -> None:
    with arraycomm.init() as group:
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="group 'world' is of this process and cannot be pickled or copied"):
                copied(group)


def _spelled(rank: int) -> None:
    with arraycomm.init(backend=("socket", "cpu:socket,cuda:socket", "cuda:socket,cpu:socket", "cpu:socket")[rank]) as group:
        assert group.all_reduce(np.array([rank])).tolist() == [6]


def test_spellings_of_one_backend_mean_the_same() -> None:
    arraycomm.spawn(_spelled, nprocs=4)

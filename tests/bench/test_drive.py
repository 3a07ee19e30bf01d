"""The driver and its contenders, with gloo as the contender: nothing here needs our engine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import pytest

from arraycomm.bench.drive import Contender, ContenderFailed, Start
from arraycomm.bench.peers.protocol import OPERATIONS

pytest.importorskip("torch", reason="gloo comes with torch")


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    with contextlib.closing(Contender(Start("gloo", 3, tmp_path_factory.mktemp("gloo"), timeout=60))) as contender:
        yield contender


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_checked_and_timed(gloo, operation):
    for size in (0,) if operation == "barrier" else (4, 20_000):
        assert gloo.ask("prepare", operation, size) == [0, 0, 0]
        times = gloo.ask("run", 3)
        assert len(times) == 3 and max(times) > 0
    assert gloo.ask("release") == [0, 0, 0]


def test_an_error_in_a_rank_comes_with_its_traceback(gloo):
    with pytest.raises(ContenderFailed, match=r"gloo: rank 0 failed at \('prepare', 'all_reduce', 'x'\):"):
        gloo.ask("prepare", "all_reduce", "x")
    assert gloo.ask("prepare", "all_reduce", 8) == [0, 0, 0]


def test_a_killed_rank_is_told_and_nothing_is_left(tmp_path):
    contender = Contender(Start("gloo", 2, tmp_path, timeout=60))
    pids = [process.pid for process in contender._processes]
    try:
        contender.ask("prepare", "all_reduce", 8)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(ContenderFailed, match="gloo: (a rank died|rank 0 failed)"):
            contender.ask("run", 100)
    finally:
        contender.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_interpreter_without_the_library_is_told(tmp_path):
    shim = tmp_path / "python"
    shim.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'raise SystemExit(\"no torch here\")'\n")
    shim.chmod(0o700)
    with pytest.raises(ContenderFailed, match="gloo: a rank .* left with exit code 1"):
        Contender(Start("gloo", 2, tmp_path, str(shim), timeout=60))

"""arraycomm-bench compare --hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from arraycomm.bench.spaces import run

from .hosts import missing

FAKE = Path(__file__).parents[1] / "bench" / "fake_peer.py"
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "arraycomm.bench", "compare", f"--peer=good={FAKE}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_ours_over_two_hosts() -> None:
    before = run("ip netns list")
    done = compare("--against=good", "--ours=auto,flat,shm", "--hosts=2", "--rate=500mbit", "--np=4", "--rounds=1",
                   "--ops=all_reduce,barrier", "--sizes=8,100K")
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and "4 ranks on 2 hosts, links of 500mbit" in done.stdout
    assert done.stdout.count("ours/auto") == done.stdout.count("ours/flat") == 5  # heading, three cells, summary
    assert "ours/shm is skipped: it is for one host" in done.stderr
    assert run("ip netns list") == before


def test_ranks_that_cannot_be_dealt_out() -> None:
    done = compare("--against=good", "--hosts=2", "--np=3")
    assert done.returncode == 2 and "--np 3 cannot be divided evenly" in done.stderr

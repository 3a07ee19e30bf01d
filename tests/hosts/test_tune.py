"""arraycomm-bench tune --hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from arraycomm.core.interface import tuning

from .hosts import missing, run

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


def tune(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "arraycomm.bench", "tune", *arguments], capture_output=True, text=True,
                          timeout=120)


def test_over_two_hosts(tmp_path: Path) -> None:
    before, file = run("ip netns list"), tmp_path / "tuning.json"
    done = tune("--hosts=2", "--rate=500mbit", "--np=2,4", "--ops=broadcast", "--sizes=64,4K", "--rounds=3", "-o", str(file))
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert [choice[:3] for choice in tuning.read(str(file)).choices] == [("broadcast", "tcp", 2), ("broadcast", "hosts", 4)]
    assert run("ip netns list") == before


def test_a_host_that_fails() -> None:
    before = run("ip netns list")
    done = tune("--hosts=2", "--np=4", "--ops=barrier", "--rounds=3", "--rate=nonsense")
    assert done.returncode == 2 and "arraycomm-bench tune: " in done.stderr and "nonsense" in done.stderr
    assert run("ip netns list") == before

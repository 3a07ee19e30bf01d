"""JAX's own collectives over several hosts: a process on each, of two devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .hosts import Hosts, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
PROGRAM = Path(__file__).parents[1] / "frameworks" / "jax" / "unchanged_ends.py"


@pytest.mark.parametrize("count", [2, 4])
def test_sums(count: int) -> None:
    with Hosts(count) as hosts:
        place = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": "29400", "WORLD_SIZE": str(count), "ARRAYCOMM_SECRET": "54" * 32,
                 "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
        running = [subprocess.Popen(["ip", "netns", "exec", name, sys.executable, str(PROGRAM), "ours"], text=True,
                                    env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.PIPE)
                   for rank, name in enumerate(hosts.names)]
        told = [process.communicate(timeout=170)[0] for process in running]
        assert told == [f"process {rank} of {count} is right\n" for rank in range(count)]
        assert [process.returncode for process in running] == [0] * count

"""JAX's own collectives over several hosts: a process on each, of two devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import mpi

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


def test_over_mpi(tmp_path: Path) -> None:
    """Under MPICH's mpirun, whose way to another host is a namespace here."""
    with Hosts(2) as hosts:
        places = [hosts.address(rank) for rank in range(2)]
        enter = tmp_path / "enter"
        cases = " ".join(f"{place}) space={name};;" for place, name in zip(places, hosts.names, strict=True))
        enter.write_text('#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nhost=$1; shift\n'
                         f'case $host in {cases} esac\nexec ip netns exec $space bash -c "$*" < /dev/null\n')
        enter.chmod(0o755)
        mpirun, *size = mpi.command("mpich", 2)
        environ = {**mpi.environ("mpich"), "MASTER_ADDR": places[0], "MASTER_PORT": "29400", "ARRAYCOMM_SECRET": "54" * 32,
                   "XLA_FLAGS": "--xla_force_host_platform_device_count=1", "UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"}
        done = subprocess.run(["ip", "netns", "exec", hosts.names[0], mpirun, "-launcher", "ssh", "-launcher-exec", str(enter),
                               "-localhost", places[0], "-hosts", ",".join(places), "-ppn", "1", *size,
                               sys.executable, str(PROGRAM), "over"],
                              env=environ, capture_output=True, text=True, timeout=170)
        told = [line for line in done.stdout.splitlines() if " WARN " not in line]
        right = [f"process {rank} of 2 is right" for rank in range(2)]
        assert sorted(told) == ["over mpi"] * 2 + right, done.stdout + done.stderr
        assert done.returncode == 0

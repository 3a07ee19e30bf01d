"""jit() takes jax.jit's options; memory of donated arguments."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .conftest import Programs


@pytest.mark.parametrize("task", ["jit_options", "donated", "ahead_of_time", "other_effects", "invalid_values"])
def test_jit(pair: Programs, task: str) -> None:
    pair.run(f"programs.{task}")


_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import arraycomm, arraycomm.frameworks.jax as comm
group, mesh = arraycomm.init(rank=0, world_size=1), Mesh(np.array(jax.devices()), ("d",))
mapped = jax.shard_map(lambda v: comm.all_reduce(v, group=group), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
spread = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, P("d")))
for function, x in ((mapped, jnp.arange(4.0)), (lambda v: comm.all_reduce(v, group=group), spread)):
    try:
        print(comm.jit(function)(x))
    except ValueError as error:
        print(error)
print(comm.jit(lambda v: v + 1)(spread))  # without collectives
"""


def test_several_local_devices_are_refused() -> None:
    """Nothing would give their operations an order."""
    environ = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", _DEVICES], env=environ, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and lines[2] == "[1. 2. 3. 4.]", done.stderr
    assert all("runs on one local device, this one is for 2" in line and "a rank for each device" in line for line in lines[:2])

"""Programs of JAX's own in which something goes wrong: `python unchanged_ends.py HOW`, see test_cpu_collectives.py."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import jax
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def sums() -> tuple[Any, ...]:
    """The compiled sum over all devices, and what it is for: ones."""
    over = Mesh(np.array(jax.devices()), ("x",))
    x = jax.make_array_from_callback((over.size, 4), NamedSharding(over, P("x")), lambda index: np.ones((1, 4), np.float32))
    return jax.jit(shard_map(lambda row: lax.psum(row, "x"), mesh=over, in_specs=P("x"), out_specs=P("x"))), x


def check() -> None:
    run, x = sums()
    np.testing.assert_array_equal(np.asarray(run(x).addressable_shards[0].data)[0], np.full(4, jax.device_count(), np.float32))
    assert jax.config.jax_cpu_collectives_implementation == "mpi"
    print(f"process {jax.process_index()} of {jax.process_count()} is right", flush=True)


def death(process: int) -> None:
    """Of a process in the middle; the others end by JAX's exception, which they do not catch."""
    jax.distributed.initialize()
    run, x = sums()
    for step in range(100000):
        if step == 50 and jax.process_index() == process:
            os.kill(os.getpid(), signal.SIGKILL)
        run(x).block_until_ready()


def address() -> None:
    """A program that says itself who the processes are."""
    jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[3]))
    check()


def again() -> None:
    """A second world of the same processes."""
    jax.distributed.initialize()
    check()
    jax.distributed.shutdown()
    jax.extend.backend.clear_backends()
    jax.clear_caches()
    jax.distributed.initialize(sys.argv[2], 2, int(os.environ["RANK"]))
    check()


def silent() -> None:
    """Nothing about distribution."""
    check()


def early() -> None:
    """initialize() of ours after JAX's backend."""
    import arraycomm.frameworks.jax as comm

    jax.devices()
    comm.initialize()


def ours() -> None:
    """initialize() of ours, under any launcher."""
    import arraycomm.frameworks.jax as comm
    from arraycomm.frameworks.jax import cpu_collectives

    comm.initialize(timeout=60)
    check()
    jax.clear_caches()
    sums()[0](sums()[1]).block_until_ready()  # another program, over the group of the first
    devices = cpu_collectives._State.devices
    assert devices and {world.timeout for world in devices._worlds.values()} == {60}
    assert len(devices._joined) == len(devices._worlds)


def over() -> None:
    """The same, and what carries the data."""
    from arraycomm.frameworks.jax import cpu_collectives

    ours()
    assert cpu_collectives._State.devices is not None
    print("over", *{world.backend for world in cpu_collectives._State.devices._worlds.values()}, flush=True)


if __name__ == "__main__":
    import jax.extend

    {"death": lambda: death(int(sys.argv[2])), "address": address, "again": again, "silent": silent, "early": early,
     "ours": ours, "over": over}[sys.argv[1]]()

"""Heat in a ring, in parts: each process has a part of it, and gets the edges of its neighbours' (lax.ppermute) in each step.

    .venv/bin/arraycomm-run --jax --nproc-per-node 4 examples/jax_halo.py

Nothing in it knows arraycomm: under srun, mpirun, or whatever else JAX knows, it goes over JAX's own gloo.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

jax.distributed.initialize()
n = jax.device_count()
mesh = jax.make_mesh((n,), ("ring",), axis_types=(AxisType.Auto,))
right, left = [(i, (i + 1) % n) for i in range(n)], [(i, (i - 1) % n) for i in range(n)]


@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("ring"), out_specs=(PartitionSpec("ring"), PartitionSpec()))
def step(heat):
    before = jax.lax.ppermute(heat[-1:], "ring", right)
    after = jax.lax.ppermute(heat[:1], "ring", left)
    padded = jnp.concatenate([before, heat, after])
    heat = heat + (padded[:-2] - 2 * heat + padded[2:]) / 4
    return heat, jax.lax.pmax(heat.max(), "ring")


heat = jax.device_put(np.sin(np.arange(4096) * 2 * np.pi / 64).astype("f"), NamedSharding(mesh, PartitionSpec("ring")))
for number in range(50):
    heat, hottest = step(heat)
    if jax.process_index() == 0 and number % 10 == 9:
        print(f"step {number} hottest {float(hottest):.7f}", flush=True)

"""Data parallel training with Flax NNX and optax: one model on all processes, each with its part of a batch.

    .venv/bin/arraycomm-run --jax --nproc-per-node 2 examples/jax_flax.py

Nothing in it knows arraycomm: under srun, mpirun, or whatever else JAX knows, it goes over JAX's own gloo.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
whole, cut = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.tanh(self.first(x)))


@nnx.jit
def step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return loss


model = Net(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
nnx.update((model, optimizer), jax.tree.map(lambda x: jax.device_put(np.asarray(x), whole), nnx.state((model, optimizer))))
for number in range(20):
    x = np.random.default_rng(number).normal(size=(64, 16)).astype("f")
    y = np.tanh(x.sum(axis=1, keepdims=True) / 4)
    loss = step(model, optimizer, jax.device_put(x, cut), jax.device_put(y, cut))
    if jax.process_index() == 0:
        print(f"step {number} loss {float(loss):.7f}", flush=True)

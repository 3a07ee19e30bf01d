"""Data parallel training of a small network with JAX and optax: the five lines marked (n) are what it takes.

    python3 -m venv .venv && .venv/bin/pip install -q '.[jax]'
    .venv/bin/python examples/jax_data_parallel.py                             # one process, the whole batch
    .venv/bin/arraycomm-run --nproc-per-node 4 examples/jax_data_parallel.py   # four, a quarter of it each: the same losses
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import arraycomm  # (1)
import arraycomm.frameworks.jax as comm  # (2)

group = arraycomm.init()  # (3)
STEPS, BATCH, INPUTS, HIDDEN = 30, 64, 16, 32
optimizer = optax.adam(2e-2)


def loss_of(params, x, y):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] - y) ** 2)


@jax.jit
def step(params, state, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    loss, grads = comm.all_reduce_tree((loss, grads), "avg", group=group)  # (4)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


rng = np.random.default_rng(0)
params = {"w1": rng.normal(size=(INPUTS, HIDDEN)) / 4, "b1": np.zeros(HIDDEN), "w2": rng.normal(size=(HIDDEN, 1)) / 6}
params = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), params)
state = optimizer.init(params)
losses = []
for _ in range(STEPS):
    x = rng.normal(size=(BATCH, INPUTS)).astype(np.float32)
    y = np.tanh(x.sum(axis=1, keepdims=True) / 4)
    x, y = np.split(x, group.size)[group.rank], np.split(y, group.size)[group.rank]  # (5)
    params, state, loss = step(params, state, x, y)
    losses.append(float(loss))
print("losses", *(f"{loss:.6f}" for loss in losses))

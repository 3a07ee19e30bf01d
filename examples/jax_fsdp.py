"""Training of a small transformer, sharded by jit: each process keeps its part of every parameter and of Adam's state (FSDP).

    .venv/bin/arraycomm-run --jax --nproc-per-node 4 examples/jax_fsdp.py

Nothing in it knows arraycomm: under srun, mpirun, or whatever else JAX knows, it goes over JAX's own gloo.
Arguments, all or none: steps, layers, width of the model, rows of a batch.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

jax.distributed.initialize()
STEPS, LAYERS, WIDTH, ROWS = map(int, sys.argv[1:] or (10, 2, 64, 8))
HEADS, LENGTH, WORDS = 4, 32, 64
mesh = jax.make_mesh((jax.device_count(),), ("all",), axis_types=(AxisType.Auto,))
whole, cut, cut_layers = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("all",), (None, "all")))
optimizer = optax.adam(1e-3)


def block(x, layer):
    q, k, v = jnp.split((jax.nn.standardize(x) @ layer["qkv"]).reshape(*x.shape[:2], HEADS, -1), 3, axis=-1)
    x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ layer["mix"]
    return x + jax.nn.gelu(jax.nn.standardize(x) @ layer["up"]) @ layer["down"], None


def loss_of(params, tokens):
    x, _ = jax.lax.scan(block, params["words"][tokens[:, :-1]] + params["places"], params["layers"])
    return optax.softmax_cross_entropy_with_integer_labels(jax.nn.standardize(x) @ params["out"], tokens[:, 1:]).mean()


@jax.jit
def step(params, state, tokens):
    loss, grads = jax.value_and_grad(loss_of)(params, tokens)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, loss


rng, wide = np.random.default_rng(0), 4 * WIDTH
shapes = {"words": (WORDS, WIDTH), "places": (LENGTH, WIDTH), "out": (WIDTH, WORDS)}
inside = {"qkv": (LAYERS, WIDTH, 3 * WIDTH), "mix": (LAYERS, WIDTH, WIDTH), "up": (LAYERS, WIDTH, wide),
          "down": (LAYERS, wide, WIDTH)}
params = {name: jax.device_put(rng.normal(size=shape).astype("f") / 8, cut) for name, shape in shapes.items()}
params["layers"] = {name: jax.device_put(rng.normal(size=shape).astype("f") / 8, cut_layers) for name, shape in inside.items()}
state, took = jax.jit(optimizer.init)(params), []
for number in range(STEPS):
    text = (np.random.default_rng(number).integers(WORDS, size=(ROWS, 1)) + np.arange(LENGTH + 1)) % WORDS
    tokens, began = jax.device_put(text, cut), time.perf_counter()
    params, state, loss = step(params, state, tokens)
    loss = float(loss)
    took.append(time.perf_counter() - began)
    if jax.process_index() == 0:
        print(f"step {number} loss {loss:.7f}", flush=True)
if jax.process_index() == 0:
    print(f"a step took {1e3 * np.median(took[2:]):.2f} ms")

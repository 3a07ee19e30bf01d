"""Data parallel training with Keras 3 on JAX, by its distribution API: one model on all processes, each fits its own rows.

    .venv/bin/arraycomm-run --jax --nproc-per-node 2 examples/jax_keras.py

Nothing in it knows arraycomm: under srun, mpirun, or whatever else JAX knows, it goes over JAX's own gloo.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"
import jax
import keras
import numpy as np

jax.distributed.initialize()
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(1e-2), "mse")
x = np.random.default_rng(0).normal(size=(256, 16)).astype("f")
y = np.tanh(x.sum(axis=1, keepdims=True) / 4)
mine = slice(jax.process_index(), None, jax.process_count())
told = model.fit(x[mine], y[mine], batch_size=64 // jax.process_count(), epochs=5, shuffle=False, verbose=0)
if jax.process_index() == 0:
    for number, loss in enumerate(told.history["loss"]):
        print(f"epoch {number} loss {loss:.7f}", flush=True)

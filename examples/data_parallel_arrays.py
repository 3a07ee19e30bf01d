"""Data parallel training of a small network in any array library: every rank has its part of each batch and the same weights.

    python3 -m venv .venv && .venv/bin/pip install -q '.[numpy]'
    .venv/bin/arraycomm-run --nproc-per-node 4 examples/data_parallel_arrays.py

--library numpy (default), mlx (`pip install 'mlx[cpu]'`), or cupy, which needs an NVIDIA GPU: --device says which, by default the
rank's on its host.
Whatever the library and the number of ranks, the losses are the same but for rounding.
"""

import argparse
import importlib
import os
from itertools import pairwise

import numpy as np

import arraycomm

WIDTHS, BATCH, STEPS, RATE = (4, 64, 64, 1), 256, 400, 0.1
MODULES = {"numpy": "numpy", "mlx": "mlx.core", "cupy": "cupy"}


def network(xp):
    """Weights and biases of each layer, in turns; equal on all ranks."""
    rng = np.random.default_rng(0)
    return [xp.array(array.astype(np.float32)) for n, m in pairwise(WIDTHS)
            for array in (rng.normal(0, n**-0.5, (n, m)), np.zeros(m))]


def batches(rank, size):
    """This rank's part of each batch, in NumPy."""
    data = np.random.default_rng(1)
    for _ in range(STEPS):
        x = data.normal(size=(BATCH, WIDTHS[0])).astype(np.float32)
        mine = x[rank * BATCH // size:(rank + 1) * BATCH // size]
        yield mine, mine[:, :1] * mine[:, 1:2]


def forward(xp, parameters, x):
    """What each layer takes in, and what comes out."""
    inputs = []
    for i in range(0, len(parameters), 2):
        inputs.append(x)
        x = x @ parameters[i] + parameters[i + 1]
        if i < len(parameters) - 2:
            x = xp.tanh(x)
    return inputs, x


def train(group, xp):
    parameters = network(xp)
    reducer = arraycomm.GradientReducer(group, parameters)   # averages; buckets of 25 MiB
    for step, (x, y) in enumerate(batches(group.rank, group.size), 1):
        inputs, out = forward(xp, parameters, xp.array(x))
        error = out - xp.array(y)
        slope = 2 * error / len(x)
        for i in reversed(range(0, len(parameters), 2)):     # backward: a bucket goes off as soon as it is full
            reducer.push(i + 1, slope.sum(axis=0))
            reducer.push(i, inputs[i // 2].T @ slope)
            slope = (slope @ parameters[i].T) * (1 - inputs[i // 2] ** 2)
        parameters = [p - RATE * gradient for p, gradient in zip(parameters, reducer.finish(), strict=True)]
        if step % 100 == 0:
            loss = group.all_reduce((error ** 2).mean().reshape(1), op="avg")
            if group.rank == 0:
                print(f"step {step}: loss {float(loss[0]):.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=MODULES, default="numpy")
    parser.add_argument("--device", type=int, default=int(os.environ.get("LOCAL_RANK", 0)), help="number of the GPU, for cupy")
    given = parser.parse_args()
    library = importlib.import_module(MODULES[given.library])
    if given.library == "cupy":
        library.cuda.Device(given.device).use()
    with arraycomm.init(backend="nccl" if given.library == "cupy" else None) as group:
        train(group, library)

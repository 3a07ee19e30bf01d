"""Data parallel training of a small network in NumPy: every rank has its part of each batch, and all have the same weights.

    .venv/bin/arraycomm-run --nproc-per-node 4 examples/data_parallel_numpy.py
"""

from itertools import pairwise

import numpy as np

import arraycomm

WIDTHS, BATCH, STEPS, RATE = (4, 64, 64, 1), 256, 400, 0.1


def network(rng):
    """Weights and biases of each layer, in turns."""
    return [array for n, m in pairwise(WIDTHS) for array in (rng.normal(0, n**-0.5, (n, m)), np.zeros(m))]


def forward(parameters, x):
    """What each layer takes in, and what comes out."""
    inputs = []
    for i in range(0, len(parameters), 2):
        inputs.append(x)
        x = x @ parameters[i] + parameters[i + 1]
        if i < len(parameters) - 2:
            x = np.tanh(x)
    return inputs, x


def train(group):
    parameters = network(np.random.default_rng(0))           # the same on all ranks
    data = np.random.default_rng(1)
    reducer = arraycomm.GradientReducer(group, parameters)   # averages; buckets of 25 MiB
    for step in range(STEPS):
        x = data.normal(size=(BATCH, WIDTHS[0]))
        y = x[:, :1] * x[:, 1:2]
        mine = slice(group.rank * BATCH // group.size, (group.rank + 1) * BATCH // group.size)
        inputs, out = forward(parameters, x[mine])
        error = out - y[mine]
        slope = 2 * error / len(error)
        for i in reversed(range(0, len(parameters), 2)):     # backward: a bucket goes off as soon as it is full
            reducer.push(i + 1, slope.sum(axis=0))
            reducer.push(i, inputs[i // 2].T @ slope)
            slope = (slope @ parameters[i].T) * (1 - inputs[i // 2] ** 2)
        for parameter, gradient in zip(parameters, reducer.finish(), strict=True):
            parameter -= RATE * gradient
        if step % 100 == 99:
            loss = group.all_reduce(np.array([np.mean(error**2)]), op="avg")
            if group.rank == 0:
                print(f"step {step + 1}: loss {loss[0]:.6f}")
    return parameters


if __name__ == "__main__":
    with arraycomm.init() as group:
        train(group)

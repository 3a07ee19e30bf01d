"""Random programs of JAX's own collectives on random sub-meshes, compared with NumPy; every process draws the same ones.

arraycomm-run --jax -n 3 -m tests.frameworks.jax.random_programs COUNT [SEED]: with JAX_NUM_CPU_DEVICES devices in each process. A
dozen run in CI, in test_cpu_collectives.py.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

DTYPES = ("int8", "int32", "uint16", "float32", "bfloat16")
Operation = Callable[[str, list[tuple[int, int]]], tuple[Callable[..., Any], Callable[..., Any]]]


def _sum(axis: str, pairs: list[tuple[int, int]]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return lambda row: lax.psum(row, axis), lambda rows, at: rows.sum(0, dtype=rows.dtype)


def _max(axis: str, pairs: list[tuple[int, int]]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return lambda row: lax.pmax(row, axis), lambda rows, at: rows.max(0)


def _gather(axis: str, pairs: list[tuple[int, int]]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return lambda row: lax.all_gather(row, axis, tiled=True), lambda rows, at: rows.ravel()


def _scatter(axis: str, pairs: list[tuple[int, int]]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (lambda row: lax.psum_scatter(row, axis, tiled=True),
            lambda rows, at: rows.sum(0, dtype=rows.dtype).reshape(len(rows), -1)[at])


def _exchange(axis: str, pairs: list[tuple[int, int]]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (lambda row: lax.all_to_all(row, axis, 0, 0, tiled=True),
            lambda rows, at: rows.reshape(len(rows), len(rows), -1)[:, at].ravel())


def _permute(axis: str, pairs: list[tuple[int, int]]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    sources = {to: source for source, to in pairs}
    return (lambda row: lax.ppermute(row, axis, pairs),
            lambda rows, at: rows[sources[at]] if at in sources else np.zeros_like(rows[0]))


OPERATIONS: tuple[Operation, ...] = (_sum, _max, _gather, _scatter, _exchange, _permute)


def one(draw: random.Random) -> None:
    """A program of a few operations over one axis of a mesh of some devices, in any order."""
    from tests.frameworks.jax.unchanged import apply_all, mesh, values

    devices = draw.sample(jax.devices(), draw.randint(1, jax.device_count()))
    outer = draw.choice([n for n in range(1, len(devices) + 1) if len(devices) % n == 0])
    inner = len(devices) // outer
    targets = draw.sample(range(inner), draw.randint(0, inner))
    pairs = list(zip(draw.sample(range(inner), len(targets)), targets, strict=True))
    parts = [(values(draw.choice((1, 7, 500)) * inner, draw.choice(DTYPES), len(devices)), draw.choice(OPERATIONS)("y", pairs))
             for _ in range(draw.randint(1, 3))]
    if all(device.process_index != jax.process_index() for device in devices):
        return
    turn = iter([fn for _, (fn, _) in parts])
    found = apply_all(lambda row: next(turn)(row), [rows for rows, _ in parts], mesh(outer, inner, devices=devices), ("x", "y"))
    for (rows, (_, expected)), here in zip(parts, found, strict=True):
        assert here
        for index, value in here.items():
            at, first = index % inner, index // inner * inner
            np.testing.assert_array_equal(value, expected(rows[first:first + inner], at))


def run(count: int, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(count):
        try:
            one(draw)
        except Exception as error:
            raise AssertionError(f"program {number} of seed {seed} is wrong") from error


if __name__ == "__main__":
    jax.distributed.initialize()
    programs, chosen = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    run(programs, chosen)
    print(f"process {jax.process_index()}: {programs} programs of seed {chosen}, 0 wrong", flush=True)

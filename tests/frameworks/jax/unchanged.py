"""A program of JAX's own, which says nothing of arraycomm: what test_cpu_collectives.py runs, in 2 processes of 2 devices.

Each function is one check. They print a line of JSON each, their name and what was wrong.
"""

from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize()

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

REDUCED = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "complex64",
           "complex128", "bfloat16")
REFUSED = ("float16", "float8_e4m3fn", "float8_e5m2")  # by jaxlib, before anything of ours is called
MOVED = (*REDUCED, *REFUSED, "bool")
LENGTHS = (1, 3, 1000, 70001)


def dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def mesh(*shape: int, names: str = "xyz", devices: object = None) -> Mesh:
    found = np.array(jax.devices() if devices is None else devices)
    return Mesh(found.reshape(shape or found.shape), tuple(names[: len(shape) or 1]))


def values(length: int, name: str, parts: int) -> np.ndarray:
    """A row for each part, of small numbers that every dtype has."""
    return (np.arange(parts * length).reshape(parts, length) % 5 + 1).astype(dtype(name))


def apply(fn: Callable[..., Any], rows: np.ndarray, over: Mesh, axes: object = "x") -> dict[int, np.ndarray]:
    """fn on each row, on its device; what this process's devices give, by row."""
    return apply_all(fn, [rows], over, axes)[0]


def apply_all(fn: Callable[..., Any], arrays: list[np.ndarray], over: Mesh, axes: object = "x") -> list[dict[int, np.ndarray]]:
    """The same on each of several arrays, in one program."""
    spec = P(axes)
    sharding = NamedSharding(over, spec)
    inputs = [jax.make_array_from_callback(rows.shape, sharding, lambda index, rows=rows: rows[index]) for rows in arrays]
    outputs = jax.jit(shard_map(lambda parts: [fn(part[0])[None] for part in parts], mesh=over, in_specs=(spec,), out_specs=spec,
                                check_vma=False))(inputs)
    return [{shard.index[0].start or 0: np.asarray(shard.data)[0] for shard in y.addressable_shards} for y in outputs]


def same(found: dict[int, np.ndarray], expected: Callable[[int], np.ndarray]) -> None:
    assert found
    for row, value in found.items():
        np.testing.assert_array_equal(value, expected(row))


def compare(fn: Callable[..., Any], arrays: list[np.ndarray], expected: Callable[[np.ndarray, int], np.ndarray]) -> None:
    for rows, found in zip(arrays, apply_all(fn, arrays, mesh()), strict=True):
        same(found, partial(expected, rows))


def reductions() -> None:
    arrays = [values(length, name, 4) for name in REDUCED for length in LENGTHS]
    ordered = [rows for rows in arrays if rows.dtype.kind != "c"] + [np.arange(12).reshape(4, 3) % 5 < 3]
    compare(lambda row: lax.psum(row, "x"), arrays, lambda rows, _: rows.sum(0, dtype=rows.dtype))
    compare(lambda row: lax.pmax(row, "x"), ordered, lambda rows, _: rows.max(0))
    compare(lambda row: lax.pmin(row, "x"), ordered, lambda rows, _: rows.min(0))


def empty() -> None:
    """Alone: beside others jaxlib 0.11.2 crashes when it compiles a sum of it."""
    for fn in (lambda row: lax.psum(row, "x"), lambda row: lax.ppermute(row, "x", [(0, 1)]), lambda row: lax.pmax(row, "x")):
        same(apply(fn, values(0, "float32", 4), mesh()), lambda _: np.empty(0, np.float32))


def movement() -> None:
    arrays = [values(length, name, 4) for name in MOVED for length in (4, 4004)]
    typed = [rows for rows in arrays if rows.dtype.name not in REFUSED]
    numbers = [rows for rows in typed if rows.dtype != bool]
    compare(lambda row: lax.ppermute(row, "x", [(i, (i + 1) % 4) for i in range(4)]), arrays, lambda rows, at: rows[at - 1])
    compare(lambda row: lax.all_to_all(row, "x", 0, 0, tiled=True), arrays,
            lambda rows, at: rows.reshape(4, 4, -1)[:, at].ravel())
    compare(lambda row: lax.all_gather(row, "x", tiled=True), typed, lambda rows, _: rows.ravel())
    compare(lambda row: lax.psum_scatter(row, "x", tiled=True), numbers,
            lambda rows, at: rows.sum(0, dtype=rows.dtype).reshape(4, -1)[at])


def partial_permutation() -> None:
    rows = values(5, "float32", 4)
    same(apply(lambda row: lax.ppermute(row, "x", [(0, 3), (1, 1)]), rows, mesh()),
         lambda at: {3: rows[0], 1: rows[1]}.get(at, np.zeros(5, np.float32)))


def refused_types() -> None:
    for name in REFUSED:
        rows = values(4, name, 4)
        for fn in (lambda row: lax.psum(row, "x"), lambda row: lax.all_gather(row, "x"), lambda row: lax.psum_scatter(row, "x")):
            try:
                apply(fn, rows, mesh())
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                assert "Unsupported primitive type for reduction" in str(error), error
            else:
                raise AssertionError(f"{name} is not refused: docs/guide/jax.md has a table that says so")


def meshes() -> None:
    """Rank 0 is the first of both of its groups of two, which look alike to MPI_Comm_split."""
    rows = values(6, "int32", 4)
    over = mesh(2, 2)
    for _ in range(2):
        same(apply(lambda row: lax.psum(row, "y"), rows, over, ("x", "y")), lambda at: rows[at // 2 * 2] + rows[at // 2 * 2 + 1])
        same(apply(lambda row: lax.psum(row, "x"), rows, over, ("x", "y")), lambda at: rows[at % 2] + rows[at % 2 + 2])
        same(apply(lambda row: lax.psum(row, ("x", "y")), rows, over, ("x", "y")), lambda _: rows.sum(0))


def _total(rows: np.ndarray, _: int) -> np.ndarray:
    return np.asarray(rows.sum(0))


def submeshes() -> None:
    """Of which the processes run different programs: here one that only some take part in."""
    first, second, third, fourth = jax.devices()
    for devices in ([first, third], [second, fourth], [fourth, first], [first, second], [third, fourth], [first, second, third]):
        if any(device.process_index == jax.process_index() for device in devices):
            rows = values(3, "float64", len(devices))
            same(apply(lambda row: lax.psum(row, "x"), rows, mesh(devices=devices)), partial(_total, rows))


def sharded_jit() -> None:
    over = mesh()
    a, b = values(64, "float32", 64), values(32, "float32", 64)
    rows, columns = NamedSharding(over, P("x", None)), NamedSharding(over, P(None, "x"))
    left = jax.make_array_from_callback(a.shape, columns, lambda index: a[index])
    right = jax.make_array_from_callback(b.shape, rows, lambda index: b[index])
    found = jax.jit(lambda left, right: left @ right, out_shardings=NamedSharding(over, P()))(left, right)
    np.testing.assert_array_equal(np.asarray(found.addressable_shards[0].data), a @ b)


def donated() -> None:
    over = mesh()
    rows = values(5000, "float32", 4)
    step = jax.jit(shard_map(lambda row: lax.psum(row, "x") / 4 + 1, mesh=over, in_specs=P("x"), out_specs=P("x")),
                   donate_argnums=0)
    x = jax.make_array_from_callback(rows.shape, NamedSharding(over, P("x")), lambda index: rows[index])
    for _ in range(20):
        x = step(x)
    for shard in x.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data)[0], rows.mean(0) + 20, rtol=1e-5)


def in_flight() -> None:
    """Programs that nobody has waited for, over groups in turn."""
    over, spec = mesh(2, 2), P(("x", "y"))
    rows = values(100, "int64", 4)
    x = jax.make_array_from_callback(rows.shape, NamedSharding(over, spec), lambda index: rows[index])
    steps = [jax.jit(shard_map(lambda row, axis=axis: lax.psum(row, axis), mesh=over, in_specs=spec, out_specs=spec,
                               check_vma=False)) for axis in ("x", "y", ("x", "y"))]
    results = [steps[i % 3](x) for i in range(90)]
    sums = (lambda at: rows[at % 2] + rows[at % 2 + 2], lambda at: rows[at // 2 * 2] + rows[at // 2 * 2 + 1],
            lambda _: rows.sum(0))
    for i, result in enumerate(results):
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data)[0], sums[i % 3](shard.index[0].start))


def loops() -> None:
    rows = values(3, "float32", 4)

    def many(row: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 64, lambda _, x: lax.psum(x, "x") / 4, row)

    same(apply(many, rows, mesh()), lambda _: rows.mean(0))


def threads() -> None:
    """Each Python thread has its own devices, and its programs their own groups."""
    wrong: list[str] = []
    first, second, third, fourth = jax.devices()

    def work(devices: list[jax.Device]) -> None:
        try:
            rows = values(2000, "int32", 2)
            for _ in range(20):
                same(apply(lambda row: lax.psum(row, "x"), rows, mesh(devices=devices)), lambda _: rows.sum(0))
        except BaseException:
            wrong.append(traceback.format_exc())

    started = [threading.Thread(target=work, args=(devices,)) for devices in ([first, third], [second, fourth])]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not wrong, wrong


def eager() -> None:
    """What JAX runs without a program of the user's: sums over sharded arrays."""
    rows = values(16, "float32", 4)
    x = jax.make_array_from_callback(rows.shape, NamedSharding(mesh(), P("x")), lambda index: rows[index])
    assert float(jnp.sum(x)) == rows.sum()
    assert jax.config.jax_cpu_collectives_implementation == "mpi"


def random_programs() -> None:
    from tests.frameworks.jax.random_programs import run

    run(12, 1)


CHECKS = (reductions, empty, movement, partial_permutation, refused_types, meshes, submeshes, sharded_jit, donated, in_flight,
          loops, threads, eager, random_programs)

if __name__ == "__main__":
    for check in CHECKS:
        try:
            check()
            told = ""
        except Exception:
            told = traceback.format_exc()
        print(json.dumps([check.__name__, told]), flush=True)

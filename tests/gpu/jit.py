"""JAX programs on this rank's GPU, or on what JAX has by default: every operation inside jit, gradients, donation and order."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

import arraycomm

ROWS = 12
Close = Callable[[Any, Any, str], None]


def check(group: arraycomm.Group, close: Close) -> None:
    """close(got, want, what) compares."""
    import jax

    devices = jax.devices()
    with jax.default_device(devices[group.rank % len(devices)]):
        operations(group, close)
        programs(group, close)


def _contribution(rank: int) -> np.ndarray[Any, Any]:
    return (np.arange(2 * ROWS).reshape(ROWS, 2) * (rank + 1) % 7 + rank).astype(np.float32)


def operations(group: arraycomm.Group, close: Close) -> None:
    import jax
    import jax.numpy as jnp

    import arraycomm.frameworks.jax as comm

    size, rank = group.size, group.rank
    xs = [_contribution(r) for r in range(size)]
    total: np.ndarray = reduce(np.add, xs)
    part = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    ring = [(r, (r + 1) % size) for r in range(size)]
    cases: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "sum": (lambda x: comm.all_reduce(x, group=group), total),
        "max": (lambda x: comm.all_reduce(x, "max", group=group), np.max(xs, 0)),
        "premul_sum": (lambda x: comm.all_reduce(x, arraycomm.premul_sum(0.5), group=group), total / 2),
        "all_gather": (lambda x: comm.all_gather(x, group=group), np.concatenate(xs)),
        "reduce_scatter": (lambda x: comm.reduce_scatter(x, group=group), total[part]),
        "all_to_all": (lambda x: comm.all_to_all(x, group=group), np.concatenate([x[part] for x in xs])),
        "broadcast": (lambda x: comm.broadcast(x, size - 1, group=group), xs[-1]),
        "reduce": (lambda x: comm.reduce(x, 0, group=group), total if rank == 0 else 0 * total),
        "permute": (lambda x: comm.permute(x, ring, group=group), xs[rank - 1]),
        "tree": (lambda x: comm.all_reduce_tree({"a": x, "b": x[0]}, "sum", group=group)["b"], total[0]),
        "scan": (lambda x: jax.lax.scan(lambda x, _: (comm.all_reduce(x, "avg", group=group), None), x, None, length=3)[0],
                 total / size),
        "gradient": (jax.grad(lambda x: (comm.all_reduce(x, group=group) ** 2).sum()), 2 * size * total),
    }
    for name, (function, want) in cases.items():
        close(np.asarray(comm.jit(function)(jnp.asarray(xs[rank]))), want.astype(np.float32), f"{name} in a program")


def programs(group: arraycomm.Group, close: Close) -> None:
    """Several operations that share no data are in order, and so are programs that nobody waits for; donated memory is kept."""
    import jax
    import jax.numpy as jnp

    import arraycomm.frameworks.jax as comm

    def independent(x: Any) -> list[Any]:
        found = [comm.all_reduce(x + i, op, group=group) for i, op in enumerate(("sum", "max", "min") * 3)]
        comm.barrier(group=group)
        return found

    x = jnp.full((400, 400), group.rank + 1.0, jnp.float32)
    want = [np.asarray(y) for y in independent(x)]
    for way in (jax.jit, comm.jit):
        for i, (found, expected) in enumerate(zip(way(independent)(x), want, strict=True)):
            close(np.asarray(found), expected, f"operation {i} of {way}, without data between them")
    step = jax.jit(lambda x: comm.all_reduce(jnp.sin(x @ x), "avg", group=group))
    under_way = [step(x) for _ in range(20)]
    for found in under_way:
        close(np.asarray(found), np.asarray(under_way[0]), "one of many programs under way")
    place = x.unsafe_buffer_pointer()
    y = comm.jit(lambda x: comm.all_reduce(x, group=group), donate_argnums=0)(x)
    assert y.unsafe_buffer_pointer() == place, "the result lies elsewhere than its donated argument"
    close(np.asarray(y), want[0], "a donated argument")

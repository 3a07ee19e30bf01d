"""What the ranks of faulty JAX jobs do: tasks of faults/job.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import arraycomm
import arraycomm.frameworks.jax as comm

from ...faults.job import Context

_X = np.arange(5, dtype=np.float32)


def total(context: Context) -> float:
    """Compiled before anything goes wrong."""
    return float(comm.jit(lambda x: comm.all_reduce(x, group=context.world).sum())(_X))


def announced(context: Context, way: str) -> float:
    """Waits in a collective inside a program: in a loop, after another one that has ended."""
    group = context.world

    def program(x: jax.Array) -> jax.Array:
        def body(_: int, x: jax.Array) -> jax.Array:
            return comm.all_reduce(x, group=group)
        return jax.lax.fori_loop(0, 1000, body, comm.broadcast(x, 0, group=group)).sum()

    compiled = comm.jit(program) if way == "jit" else jax.jit(program)
    context.say()
    with comm.errors():
        return float(compiled(_X))


def text_of(context: Context) -> str:
    """Without errors() it is one of JAX's, which says as much."""
    try:
        return str(jax.jit(lambda x: comm.all_reduce(x, group=context.world))(_X).sum())
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return str(error)


def closed(context: Context) -> str:
    """A compiled program whose group is closed, and one with a new group after it."""
    group = context.world
    program = comm.jit(lambda x: comm.all_reduce(x, group=group))
    program(_X)
    group.close()
    try:
        program(_X)
    except arraycomm.Aborted as error:
        return str(error)
    return "it ran"


def closed_while_inside(context: Context) -> tuple[str, str]:
    """Another thread closes the group while a program waits in it."""
    import threading

    group = context.world
    program = comm.jit(lambda x: comm.all_reduce(x, group=group))
    program(_X)
    if context.rank:
        return "", ""
    threading.Timer(0.2, group.close, ("Test",)).start()
    try:
        program(_X)
    except arraycomm.Aborted as error:
        return type(error).__name__, str(error)
    return "", "it ran"


def after_a_failure(context: Context) -> list[float]:
    """Programs with another group go on after one has failed: what the failed one left must not fail them."""
    other = context.world.split(0)
    assert other is not None
    x = jnp.asarray(_X)
    failing = jax.jit(lambda x: comm.all_reduce(x[: context.rank + 1], group=context.world))
    try:
        with comm.errors():
            failing(x).block_until_ready()
    except arraycomm.CollectiveMismatch:
        found = [float(jax.jit(lambda x: comm.all_reduce(x, group=other))(x).sum())]
        return [*found, float(comm.jit(lambda x: comm.all_reduce(x, group=other))(x).sum())]
    return []


def differentiated_by_one(context: Context) -> list[str]:
    """By rank 0; rank 1 goes on to a barrier."""
    said = []
    for way in (jax.jit, comm.jit, lambda f: f):
        group = context.world.split(0)
        assert group is not None

        def loss(x: jax.Array, group: arraycomm.Group = group) -> jax.Array:
            return (comm.all_reduce(x, group=group) ** 2).sum()

        try:
            with comm.errors():
                jax.block_until_ready(way(loss if context.rank else jax.grad(loss))(jnp.asarray(_X)))
                if context.rank:
                    comm.barrier(group=group)
            said.append("nothing")
        except arraycomm.CollectiveMismatch as error:
            said.append(str(error))
    return said


def many(context: Context, way: str) -> float:
    """A program of operations that are all short. It is compiled before it is said to begin: what a signal's handler raises
    while JAX compiles may be raised in JAX's callback of the garbage collector, and is lost there."""
    group, x = context.world, jnp.asarray(_X)

    def program(x: jax.Array, turns: int) -> jax.Array:
        return jax.lax.fori_loop(0, turns, lambda _, x: comm.all_reduce(x, "avg", group=group), x)

    compiled = comm.jit(program) if way == "jit" else jax.jit(program)
    compiled(x, 1).block_until_ready()
    context.say()
    with comm.errors():
        return float(compiled(x, 10_000_000).sum())


def wrong_calls(context: Context) -> list[str]:
    """Refused when the program is traced."""
    group, said = context.world, []
    pairs: Any = [(0,)]
    numbers: Any = [5]
    other: Any = SimpleNamespace(core=group)
    calls = [lambda x: comm.all_reduce(x, "median", group=group), lambda x: comm.all_reduce(x, jnp.matmul, group=group),
             lambda x: comm.all_reduce(x, "minloc", group=group), lambda x: comm.all_reduce(x, "bor", group=group),
             lambda x: comm.reduce_scatter(x, group=group), lambda x: comm.broadcast(x, 7, group=group),
             lambda x: comm.all_reduce(x.astype(jnp.int4), group=group),
             lambda x: comm.permute(x, [(0, 1), (0, 0)], group=group), lambda x: comm.permute(x, pairs, group=group),
             lambda x: comm.permute(x, numbers, group=group),
             lambda x: comm.all_gather(x, form="list", group=group),
             lambda x: comm.broadcast(x, group=other)]
    for call in calls:
        for way in (jax.jit, comm.jit, lambda f: f):
            try:
                way(call)(jnp.asarray(_X))
            except (TypeError, ValueError) as error:
                said.append(f"{type(error).__name__}: {error}")
            else:
                said.append("nothing")
    return said

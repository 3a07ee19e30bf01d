"""Gradients between ranks against those of one process that computes all ranks' parts. A task of conformance/worlds.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import arraycomm
import arraycomm.frameworks.jax as comm

from ...conformance.worlds import Context

ROWS = 6
Together = Callable[[list[Any]], list[Any]]


def _parts(x: Any, size: int) -> list[Any]:
    return jnp.split(x, size)


def _cases(context: Context) -> dict[str, tuple[Callable[[Any], Any], Together]]:
    """The operation of one rank, and what it does to all ranks' arrays."""
    group, size = context.group, context.size
    ring = [(r, (r + 1) % size) for r in range(size)]

    def reduced(op: Any, kind: str = "all_reduce") -> Callable[[Any], Any]:
        return lambda x: getattr(comm, kind)(x, op, group=group)

    def to_all(together: Callable[[list[Any]], Any]) -> Together:
        return lambda xs: [together(xs)] * size

    return {
        "sum": (reduced("sum"), to_all(sum)),
        "avg": (reduced("avg"), to_all(lambda xs: sum(xs) / size)),
        "premul_sum": (reduced(arraycomm.premul_sum(3.0)), to_all(lambda xs: 3 * sum(xs))),
        "max": (reduced("max"), to_all(lambda xs: jnp.max(jnp.stack(xs), 0))),
        "min": (reduced("min"), to_all(lambda xs: jnp.min(jnp.stack(xs), 0))),
        "all_gather": (lambda x: comm.all_gather(x, group=group), to_all(jnp.concatenate)),
        "stack": (lambda x: comm.all_gather(x, form="stack", group=group), to_all(jnp.stack)),
        "reduce_scatter": (reduced("sum", "reduce_scatter"), lambda xs: _parts(sum(xs), size)),
        "reduce_scatter avg": (reduced("avg", "reduce_scatter"), lambda xs: _parts(sum(xs) / size, size)),
        "all_to_all": (lambda x: comm.all_to_all(x, group=group),
                       lambda xs: [jnp.concatenate([_parts(x, size)[r] for x in xs]) for r in range(size)]),
        "broadcast": (lambda x: comm.broadcast(x, 1, group=group), to_all(lambda xs: xs[1])),
        "reduce": (lambda x: comm.reduce(x, 1, group=group),
                   lambda xs: [sum(xs) if r == 1 else jnp.zeros_like(xs[0]) for r in range(size)]),
        "permute": (lambda x: comm.permute(x, ring, group=group), lambda xs: [xs[r - 1] for r in range(size)]),
        "permute some": (lambda x: comm.permute(x, np.array([(0, 1)]), group=group),
                         lambda xs: [xs[0] if r == 1 else jnp.zeros_like(xs[0]) for r in range(size)]),
    }


def _loss(y: Any, rank: int) -> Any:
    return jnp.sum(jnp.sin(y) * (rank + 1 + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)))


def _x(rank: int) -> Any:
    return jnp.asarray(np.random.default_rng(rank).normal(size=(ROWS, 2)), jnp.float32)


def _compare(context: Context, way: str, found: dict[str, Any], want: dict[str, Any]) -> None:
    for name, value in found.items():
        context.check(np.allclose(value, want[name], rtol=1e-5, atol=1e-5), f"{name}, {way}: {value}, not {want[name]}")


def gradients(context: Context) -> None:
    xs, rank, cases = [_x(r) for r in range(context.size)], context.rank, _cases(context)

    def whole(name: str, mine: Any) -> Any:
        everybody = [mine if r == rank else x for r, x in enumerate(xs)]
        return sum(_loss(y, r) for r, y in enumerate(cases[name][1](everybody)))

    def mine(name: str, x: Any) -> Any:
        return _loss(cases[name][0](x), rank)

    def each(function: Callable[[str, Any], Any]) -> Callable[[Any], Any]:
        return lambda x: {name: jax.grad(functools.partial(function, name))(x) for name in cases}

    want = jax.jit(each(whole))(xs[rank])
    _compare(context, "jit", comm.jit(each(mine))(xs[rank]), want)
    _compare(context, "jax.jit", jax.jit(each(mine))(xs[rank]), want)
    again = each(lambda name, x: jax.checkpoint(functools.partial(mine, name))(x))
    _compare(context, "remat", comm.jit(again)(xs[rank]), want)
    for name in ("sum", "max", "all_gather"):
        _compare(context, "eager", {name: jax.grad(functools.partial(mine, name))(xs[rank])}, want)
        _compare(context, "of jit", {name: jax.grad(comm.jit(functools.partial(mine, name)))(xs[rank])}, want)


def forward(context: Context) -> None:
    """Tangents: every rank's x moves."""
    xs, moves, rank = [_x(r) for r in range(context.size)], [_x(100 + r) for r in range(context.size)], context.rank
    cases = _cases(context)
    want = jax.jit(lambda xs, moves: {name: jax.jvp(together, (xs,), (moves,))[1][rank] for name, (_, together) in cases.items()})
    found = comm.jit(lambda x, move: {name: jax.jvp(own, (x,), (move,))[1] for name, (own, _) in cases.items()})
    _compare(context, "jvp", found(xs[rank], moves[rank]), want(xs, moves))


def in_loops(context: Context) -> None:
    """Through scan, and twice: a recurrent network whose state is shared in each step."""
    n, rank = context.size, context.rank
    xs = [_x(r)[0] for r in range(n)]

    def shared(x: Any) -> Any:
        def body(carry: Any, _: Any) -> tuple[Any, None]:
            return jnp.tanh(comm.all_reduce(carry * x, "avg", group=context.group)), None
        return jax.lax.scan(body, jnp.ones(2), None, length=3)[0].sum()

    def whole(mine: Any) -> Any:
        carry = jnp.ones(2)
        for _ in range(3):
            carry = jnp.tanh(sum(carry * (mine if r == rank else x) for r, x in enumerate(xs)) / n)
        return n * carry.sum()

    want = jax.grad(whole)(xs[rank])
    for way in (jax.jit, comm.jit):
        found = way(jax.grad(shared))(xs[rank])
        context.check(np.allclose(found, want, rtol=1e-5), f"scan: {found}, not {want}")

    def cubed(x: Any) -> Any:
        return (comm.all_reduce(x, group=context.group) ** 3).sum()

    found = comm.jit(jax.hessian(cubed))(xs[rank])
    want = np.diag(6 * n * n * np.asarray(sum(xs)))  # each derivative is of the sum of all ranks' values
    context.check(np.allclose(found, want, rtol=1e-5), f"hessian: {found}, not {want}")


def pipeline(context: Context) -> None:
    """One network over two ranks, whose messages are permutations that the other ranks do not call."""
    def stages(x: Any, w0: Any, w1: Any) -> tuple[Any, Any]:
        hidden = jnp.sin(w0 * x)
        return hidden, jnp.sum((hidden * w1) ** 2)

    x, w = jnp.arange(3.0) + 1, [jnp.float32(0.7), jnp.float32(0.3)]

    def mine(own: Any) -> Any:
        if context.rank == 0:
            return comm.permute(stages(x, own, 0.0)[0], [(0, 1)], group=context.group).sum()  # zeros: the loss is rank 1's
        hidden = comm.permute(0 * own * x, [(0, 1)], group=context.group)  # of own, so that JAX asks for what goes back
        return jnp.sum((hidden * own) ** 2)

    if context.rank < 2:
        want = jax.grad(lambda *w: stages(x, *w)[1], context.rank)(*w)
        for way in (lambda f: f, jax.jit, comm.jit):
            found = way(jax.grad(mine))(w[context.rank])
            context.check(np.allclose(found, want, rtol=1e-5), f"stage {context.rank}: {found}, not {want}")


def refused(context: Context) -> None:
    group, x = context.group, jnp.ones(4)
    cases: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
        "product": (lambda x: comm.all_reduce(x, "product", group=group).sum(), NotImplementedError,
                    "no derivative for op 'product'"),
        "part of max": (lambda x: comm.reduce_scatter(jnp.tile(x, group.size), "max", group=group).sum(), NotImplementedError,
                        "no derivative for op 'max'"),
        "send": (lambda x: (comm.send(x, 0, group=group), x.sum())[1], NotImplementedError, "use permute"),
        "recv": (lambda x: comm.recv(0, group=group, like=x).sum(), NotImplementedError, "use permute"),
    }
    for name, (function, kind, words) in cases.items():
        context.raises(name, kind, words, partial(jax.jit(jax.grad(function)).lower, x))  # traced only: nothing is sent

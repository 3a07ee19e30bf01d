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
    return list(jnp.split(x, size))


def _cases(context: Context) -> dict[str, tuple[Callable[[Any], Any], Together]]:
    """The operation of one rank, and what it does to all ranks' arrays."""
    group, size = context.group, context.size
    ring = [(r, (r + 1) % size) for r in range(size)]
    as_array: Any = np.array([(0, 1)])

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
        "scan": (reduced("sum", "scan"), lambda xs: [sum(xs[: r + 1]) for r in range(size)]),
        "scan avg": (reduced("avg", "scan"), lambda xs: [sum(xs[: r + 1]) / (r + 1) for r in range(size)]),
        "exscan": (reduced("sum", "exscan"), lambda xs: [sum(xs[:r], jnp.zeros_like(xs[0])) for r in range(size)]),
        "exscan premul_sum": (reduced(arraycomm.premul_sum(3.0), "exscan"),
                              lambda xs: [3 * sum(xs[:r], jnp.zeros_like(xs[0])) for r in range(size)]),
        "permute": (lambda x: comm.permute(x, ring, group=group), lambda xs: [xs[r - 1] for r in range(size)]),
        "permute some": (lambda x: comm.permute(x, as_array, group=group),
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
    def send(x: Any) -> Any:
        comm.send(x, 0, group=group)
        return x.sum()

    cases: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
        "product": (lambda x: comm.all_reduce(x, "product", group=group).sum(), NotImplementedError,
                    "no derivative for op 'product'"),
        "part of max": (lambda x: comm.reduce_scatter(jnp.tile(x, group.size), "max", group=group).sum(), NotImplementedError,
                        "no derivative for op 'max'"),
        "send": (send, NotImplementedError, "use permute"),
        "recv": (lambda x: comm.recv(0, group=group, like=x).sum(), NotImplementedError, "use permute"),
    }
    for name, (function, kind, words) in cases.items():
        context.raises(name, kind, words, partial(jax.jit(jax.grad(function)).lower, x))  # traced only: nothing is sent


def _replicated(tree: Any, data: Any) -> Any:
    """A rank's part of a log density, of all kinds of leaves; shift is one that only rank 0's part depends on."""
    at = tree["at"] * jnp.exp(1j * tree["phase"].astype(jnp.complex64))
    return -jnp.sum((data - at.real[: data.shape[0]]) ** 2 * tree["scale"]) + jnp.sum(jnp.abs(at) ** 3)


def replicated(context: Context) -> None:
    """One value on all ranks: its gradient by every rank's copy of a parameter is that of one process with all ranks' data."""
    group, size = context.group, context.size
    datas = [jnp.asarray(np.random.default_rng(r).normal(size=3), jnp.float32) for r in range(size)]
    tree = {"at": jnp.asarray([1 + 2j, 0.5, -1j], jnp.complex64), "phase": jnp.asarray([0.1, 0.2, 0.3]),
            "scale": jnp.float32(0.7), "bf16": jnp.ones(2, jnp.bfloat16), "count": jnp.arange(3), "key": jax.random.key(1),
            "none": None, "flag": True, "function": jnp.sin}
    numbers = ("at", "phase", "scale", "bf16")

    def join(numbers: Any) -> Any:
        return tree | numbers

    def whole(moved: Any) -> Any:
        return sum(_replicated(join(moved), data) for data in datas) + jnp.sum(moved["bf16"].astype(jnp.float32)) * datas[0][0]

    def mine(moved: Any) -> Any:
        held = comm.replicate(join(moved), group=group)
        part = _replicated(held, datas[context.rank])
        if context.rank == 0:  # the others' parts do not depend on this leaf
            part += jnp.sum(held["bf16"].astype(jnp.float32)) * datas[0][0]
        return comm.all_reduce(part, group=group)

    def ways(value: Any) -> Callable[[Any], Any]:
        """What is done with a rank's value; one program, as each is compiled."""
        def steps(x: Any) -> Any:
            def body(x: Any, _: Any) -> tuple[Any, None]:
                return jax.tree.map(lambda a, b: a + (0.01 * b).astype(a.dtype), x, jax.grad(value)(x)), None
            return jax.lax.scan(body, x, None, length=4)[0]

        def all_of_them(moved: Any) -> Any:
            several = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), moved)
            axes = ({name: None if name == "phase" else 0 for name in numbers},)

            def curved(s: Any) -> Any:
                return value(moved | {"scale": s * s})

            scale = moved["scale"]
            return {"value": jax.value_and_grad(value)(moved), "remat": jax.grad(jax.checkpoint(value))(moved),
                    "vmap": jax.vmap(jax.grad(value))(several), "scan": steps(moved), "hessian": jax.hessian(curved)(scale),
                    "vmap of some": jax.vmap(jax.grad(value), in_axes=axes)(several | {"phase": moved["phase"]}),
                    "twice": jax.grad(jax.grad(curved))(scale), "jvp": jax.jvp(curved, (scale,), (jnp.float32(2),))}
        return all_of_them

    def check(found: Any, want: Any) -> None:
        for (path, value), expected in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(want), strict=True):
            context.check(value.dtype == expected.dtype and np.allclose(value, expected, rtol=1e-4, atol=1e-4),
                          f"{jax.tree_util.keystr(path)}: {value}, not {expected}")

    moved = {name: tree[name] for name in numbers}
    want = jax.jit(ways(whole))(moved)
    found = comm.jit(ways(mine))(moved)
    check(found, want)
    check(jax.grad(jax.jit(mine))(moved), want["value"][1])
    bits = np.asarray(group.all_gather(found["scan"]["phase"]))
    context.check((bits == np.tile(found["scan"]["phase"], size)).all(), f"ranks differ after steps: {bits}")
    held = comm.replicate(tree, group=group)
    context.check(all(held[name] is tree[name] for name in tree), f"{held}")
    try:
        comm.replicate(tree, group=object())  # type: ignore[arg-type]
        context.check(False, "took an object for a group")
    except TypeError as error:
        context.check("group must be an arraycomm.Group" in str(error), str(error))

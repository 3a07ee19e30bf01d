"""all_reduce_tree on every rank: a task of conformance/worlds.py."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import arraycomm
import arraycomm.frameworks.jax as comm

from ...conformance.worlds import Context

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "float32": [(3, 5), (), (0, 4), (40, 50), (700,)], "bfloat16": [(301,), (7, 11)], "int32": [(2000,)]}


def _tree(rank: int) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(rank)
    return {name: [np.asarray(10 * rng.normal(size=shape)).astype(jnp.dtype(name)) for shape in shapes]
            for name, shapes in SHAPES.items()}


def _bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def buckets(context: Context, eager: tuple[int, ...]) -> None:
    """Values by NumPy; and the same bits for every size of buckets, in programs and (some sizes) eagerly."""
    mine = jax.tree.map(jnp.asarray, _tree(context.rank))
    trees = [_tree(rank) for rank in range(context.size)]
    for op, factor in (("avg", 1 / context.size), (arraycomm.premul_sum(2.0), 2.0))[: 1 + len(eager)]:
        first: list[bytes] = []
        for bucket_bytes in (1, 6000, 25 << 20):
            def reduced(tree: Any) -> Any:
                return comm.all_reduce_tree(tree, op, group=context.group, bucket_bytes=bucket_bytes)  # noqa: B023

            ways = {"jit": comm.jit(reduced), **({"eager": reduced} if bucket_bytes in eager else {})}
            for way, function in ways.items():
                found = function(mine)
                first = first or _bits(found)
                context.check(_bits(found) == first, f"{op}, {way}: other bits with buckets of {bucket_bytes} bytes")
        for name in ("float32", "bfloat16"):
            for i, leaf in enumerate(found[name]):
                want = np.asarray(sum(tree[name][i].astype(np.float64) for tree in trees) * factor)
                context.check(leaf.shape == want.shape and leaf.dtype == mine[name][i].dtype, f"{op}: {leaf.shape} {leaf.dtype}")
                close = np.allclose(np.asarray(leaf, np.float64), want, rtol=0.02 if name == "bfloat16" else 1e-5, atol=1e-5)
                context.check(close, f"{op} of {name} {leaf.shape}")
    for number, bits in enumerate(first):
        context.same(f"leaf {number}", np.frombuffer(bits, np.uint8))


def wrong_calls(context: Context) -> None:
    size: Any
    for size in (0, -1, 1.5, True):
        try:
            comm.all_reduce_tree({"a": jnp.ones(2)}, group=context.group, bucket_bytes=size)
        except ValueError as error:
            context.check("bucket_bytes must be an integer" in str(error), str(error))
        else:
            context.check(False, f"bucket_bytes={size!r} was taken")
    for leaf, text in ((jax.random.key(0), "dtype key<fry>: JAX's random keys can be moved"), ("text", "")):
        tree = {"layers": [jnp.ones(2), leaf]}
        context.raises(f"a leaf {leaf!r}", TypeError, rf"leaf \['layers'\]\[1\] of the tree: .*{text}",
                       partial(comm.all_reduce_tree, tree, group=context.group))
    context.check(comm.all_reduce_tree({}, group=context.group) == {}, "an empty tree")

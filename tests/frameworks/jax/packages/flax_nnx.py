"""Flax NNX with optax: gradients are averaged before the optimizer sees them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import arraycomm
import arraycomm.frameworks.jax as comm


def trained(xs, ys, averaged):
    model = nnx.Sequential(nnx.Linear(4, 16, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(16, 1, rngs=nnx.Rngs(1)))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        loss, grads = averaged((loss, grads))
        optimizer.update(model, grads)
        return loss

    losses = [float(step(model, optimizer, xs, ys)) for _ in range(20)]
    return losses, [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]


def main() -> None:
    group = arraycomm.init()
    xs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    ys = xs.sum(1, keepdims=True)
    mine = slice(group.rank, None, group.size)
    losses, found = trained(jnp.asarray(xs[mine]), jnp.asarray(ys[mine]),
                            lambda tree: comm.all_reduce_tree(tree, "avg", group=group))
    want_losses, want = trained(jnp.asarray(xs), jnp.asarray(ys), lambda tree: tree)
    np.testing.assert_allclose(losses, want_losses, rtol=1e-3)
    for leaf, expected in zip(found, want, strict=True):
        assert (np.asarray(group.all_gather(leaf, form="stack")) == leaf).all(), "ranks differ"
        np.testing.assert_allclose(leaf, expected, rtol=1e-3, atol=1e-4)
    group.close()


if __name__ == "__main__":
    main()

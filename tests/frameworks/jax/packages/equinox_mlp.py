"""Equinox: the gradient of replicate() is the average over the ranks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import arraycomm
import arraycomm.frameworks.jax as comm


def trained(xs, ys, replicated):
    model = eqx.nn.MLP(4, 1, 16, 2, key=jax.random.key(0))
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state, x, y):
        def loss(model):
            return jnp.mean((jax.vmap(replicated(model))(x) - y) ** 2)

        grads = eqx.filter_grad(loss)(model)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(model, updates), state

    for _ in range(20):
        model, state = step(model, state, xs, ys)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array))]


def main() -> None:
    group = arraycomm.init()
    xs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    ys = xs.sum(1, keepdims=True)
    mine = slice(group.rank, None, group.size)
    found = trained(jnp.asarray(xs[mine]), jnp.asarray(ys[mine]), lambda model: comm.replicate(model, group=group))
    want = trained(jnp.asarray(xs), jnp.asarray(ys), lambda model: model)
    for leaf, expected in zip(found, want, strict=True):
        assert (np.asarray(group.all_gather(leaf, form="stack")) == leaf).all(), "ranks differ"
        np.testing.assert_allclose(leaf, expected, rtol=1e-3, atol=1e-4)
    group.close()


if __name__ == "__main__":
    main()

"""BlackJAX's NUTS: every rank has a part of the data, all ranks draw the same samples."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import arraycomm
import arraycomm.frameworks.jax as comm

jax.config.update("jax_enable_x64", True)


def sampled(logdensity):
    kernel = blackjax.nuts(logdensity, step_size=0.1, inverse_mass_matrix=jnp.ones(3))

    def step(state, key):
        state, _ = kernel.step(key, state)
        return state, state.position

    run = jax.jit(lambda start: jax.lax.scan(step, kernel.init(start), jax.random.split(jax.random.key(1), 60))[1])
    return np.asarray(run(jnp.zeros(3)))


def main() -> None:
    group = arraycomm.init()
    data = np.random.default_rng(0).normal([1.0, 2.0, 3.0], size=(300, 3))
    mine = jnp.asarray(data[group.rank :: group.size])

    def likelihood(theta, data):
        return -0.5 * jnp.sum((data - theta) ** 2) - jnp.sum(jnp.log1p((data[:, 0] * theta[1]) ** 2)) / 10

    def logdensity(theta):
        part = likelihood(comm.replicate(theta, group=group), mine)
        return -0.5 * jnp.sum(theta**2) + comm.all_reduce(part, group=group)

    found = sampled(logdensity)
    everybody = np.asarray(group.all_gather(found, form="stack"))
    assert (everybody == found).all(), "ranks draw different samples"
    want = sampled(lambda theta: -0.5 * jnp.sum(theta**2) + likelihood(theta, jnp.asarray(data)))
    np.testing.assert_allclose(found, want, rtol=1e-6)
    group.close()


if __name__ == "__main__":
    main()

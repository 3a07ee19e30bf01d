"""Logistic regression by NumPyro's NUTS: every rank has a part of the data, all ranks draw the same samples."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import arraycomm
import arraycomm.frameworks.jax as comm

jax.config.update("jax_enable_x64", True)


def sampled(model, *data):
    mcmc = MCMC(NUTS(model), num_warmup=60, num_samples=60, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    return np.asarray(mcmc.get_samples()["theta"])


def main() -> None:
    group = arraycomm.init()
    random = np.random.default_rng(0)
    xs = random.normal(size=(200, 3))
    ys = random.random(200) < 1 / (1 + np.exp(-xs @ [1.0, -2.0, 0.5]))

    def model(x, y):
        theta = numpyro.sample("theta", dist.Normal(0, 1).expand([3]).to_event(1))
        shared = comm.replicate(theta, group=group)
        part = dist.Bernoulli(logits=x @ shared).log_prob(y).sum()
        numpyro.factor("likelihood", comm.all_reduce(part, group=group))

    def alone(x, y):
        theta = numpyro.sample("theta", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ theta), obs=y)

    mine = slice(group.rank, None, group.size)
    found = sampled(model, jnp.asarray(xs[mine]), jnp.asarray(ys[mine], int))
    everybody = np.asarray(group.all_gather(found, form="stack"))
    assert (everybody == found).all(), "ranks draw different samples"
    want = sampled(alone, jnp.asarray(xs), jnp.asarray(ys, int))
    np.testing.assert_allclose(found, want, rtol=1e-6)
    group.close()


if __name__ == "__main__":
    main()

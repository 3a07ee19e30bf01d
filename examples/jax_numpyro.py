"""Chains of NumPyro's NUTS, one on each process, whose samples are gathered to see whether they agree (r_hat).

    .venv/bin/arraycomm-run --jax --nproc-per-node 2 examples/jax_numpyro.py

Nothing in it knows arraycomm: under srun, mpirun, or whatever else JAX knows, it goes over JAX's own gloo.
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.experimental.multihost_utils import process_allgather
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC, NUTS

jax.distributed.initialize()
x = np.random.default_rng(0).normal(size=(50, 2)).astype("f")
y = x @ np.array([1.0, -2.0], "f") + np.random.default_rng(1).normal(size=50).astype("f") / 2


def model(x, y):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ weights, 0.5), obs=y)


@jax.jit  # one program to compile, instead of a hundred small ones
def draw(key):
    chain = MCMC(NUTS(model), num_warmup=50, num_samples=50, progress_bar=False)
    chain.run(key, x, y)
    return chain.get_samples()


samples = draw(jax.random.fold_in(jax.random.key(0), jax.process_index()))
samples = process_allgather(samples, tiled=False)  # of all chains: (processes, samples, ...)
if jax.process_index() == 0:
    for name, found in samples.items():
        print(f"{name}: means of the chains {np.mean(found, axis=1).tolist()}, r_hat {split_gelman_rubin(found)}", flush=True)

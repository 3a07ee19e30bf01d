"""JAX-MD: every rank sums the energy of its particles' pairs, all ranks integrate the same trajectory."""

import jax
import jax.numpy as jnp
import numpy as np
from jax_md import energy, quantity, simulate, space

import arraycomm
import arraycomm.frameworks.jax as comm

jax.config.update("jax_enable_x64", True)


def trajectory(energy_of, shift, start):
    init, step = simulate.nve(energy_of, shift, dt=1e-2)
    run = jax.jit(lambda state: jax.lax.fori_loop(0, 50, lambda _, state: step(state), state))
    state = run(init(jax.random.key(1), start, kT=0.5))
    return np.asarray(state.position), float(quantity.kinetic_energy(momentum=state.momentum, mass=state.mass))


def main() -> None:
    group = arraycomm.init()
    displacement, shift = space.periodic(6.0)
    start = jax.random.uniform(jax.random.key(0), (40, 2), maxval=6.0, dtype=jnp.float64)
    pairs = space.map_product(displacement)

    def energy_of(position, **_):
        mine = slice(group.rank, None, group.size)
        shared = comm.replicate(position, group=group)
        apart = space.distance(pairs(shared, shared[mine]))
        itself = jnp.arange(len(start))[mine, None] == jnp.arange(len(start))
        part = 0.5 * jnp.sum(jnp.where(itself, 0.0, energy.soft_sphere(apart)))
        return comm.all_reduce(part, group=group)

    position, kinetic = trajectory(energy_of, shift, start)
    everybody = np.asarray(group.all_gather(position, form="stack"))
    assert (everybody == position).all(), "ranks differ"
    want, want_kinetic = trajectory(energy.soft_sphere_pair(displacement), shift, start)
    np.testing.assert_allclose(position, want, rtol=1e-8)
    np.testing.assert_allclose(kinetic, want_kinetic, rtol=1e-8)
    group.close()


if __name__ == "__main__":
    main()

"""Arrays that cannot be used where they are given; the tables of wrong calls are in wrong_*.py."""

from __future__ import annotations

from functools import partial

import numpy as np

import arraycomm.distributed as dist
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DeviceType, DType
from tests.present import present

from .checks import Library, check, same
from .object_checks import refused


@check
def arrays_elsewhere(lib: Library) -> None:
    """On a device for which the group has no backend."""
    x = Buffer(4096, 2, DType.FLOAT32, DeviceType.ROCM, 0, False, (2,), None)
    for call in (dist.all_reduce, lambda x: dist.broadcast(x, 0), lambda x: dist.all_gather([x, x, x], x),
                 lambda x: dist.send(x, (lib.rank + 1) % 3), lambda x: dist.all_gather_single(x, x)):
        refused(RuntimeError, "", partial(call, x))


@check
def arrays_that_cannot_change(lib: Library) -> None:
    """JAX: a root may give them; where they would be written, the error names what gives a new one."""
    if lib.name == "torch":
        return
    import jax.numpy as jnp

    x = jnp.ones(2)
    refused(ValueError, "core.all_reduce(x)", lambda: dist.all_reduce(x))
    refused(ValueError, "JAX arrays are immutable", lambda: dist.all_gather([x, x, x], x))
    out = np.zeros(2)
    dist.broadcast(jnp.full(2, 4.0, "float32").astype("float32") if lib.rank == 0 else out.astype("float32"), 0)
    dist.reduce(np.zeros(2, "float32") if lib.rank == 0 else x, 0)
    same(present(dist.group.WORLD).core.all_reduce(x), [3.0, 3.0])
    found = [np.zeros(2, "float32") for _ in range(3)]
    dist.all_gather(found, x)
    same(found[2], [1.0, 1.0])

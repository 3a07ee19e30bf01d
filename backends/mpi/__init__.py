"""The MPI backend: the socket backend's engine, with MPI as the transport between hosts. Open MPI, MPICH, Intel MPI and the
MPI-5 ABI, bound at run time. See docs/guide/mpi.md."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from arraycomm._engine import Operation, ffi, lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DeviceType, ReduceOp
from arraycomm.core.base import settings
from arraycomm.core.base.errors import DistBackendError
from arraycomm.core.bootstrap.rendezvous import Rendezvous, announced
from arraycomm.core.bootstrap.store import HashStore

from ..communicator import address
from ..socket.communicator import SocketCommunicator, wanted_algorithms
from . import process
from .endpoint import MpiEndpoint
from .library import Library, load

__all__ = ["MpiBackend", "MpiCommunicator"]


class MpiCommunicator(SocketCommunicator):
    """See SocketCommunicator. Close it before MPI_Finalize."""

    network = "MPI"
    _endpoint: MpiEndpoint

    def _carry(self, group: object) -> None:
        super()._carry(group)
        process.groups.add(self)
        self.carries_gpus = self.size > 1 and self._endpoint.takes_gpus
        # After a death MPI can make no communicator for a new group.
        self.takes_gpus = self.carries_gpus and lib.acomm_node_failed(self._endpoint.node) < 0

    def carry(self, array: Any, buffer: Buffer, pinned: Buffer | None, peer: int | None, tag: int, *, timeout: float | None,
              async_op: bool) -> Operation | None:
        """A message of an array on a GPU (array: an acomm_gpu_array): with `pinned` a receive."""
        places = (0, address(array)) if pinned is None else (address(array), pinned.address)
        return self._run(lib.ACOMM_SEND if pinned is None else lib.ACOMM_RECV, *places, buffer.count, buffer.dtype, 0, timeout,
                         async_op, (array, buffer, pinned), ReduceOp("", lib.ACOMM_ON_GPU), -1 if peer is None else peer, tag)


class MpiBackend:
    """Follows arraycomm.core.interface.backend.Backend."""

    name = "mpi"
    devices = frozenset((int(DeviceType.CPU), int(DeviceType.CUDA_HOST), int(DeviceType.ROCM_HOST)))
    on_gpus = "arraycomm.backends.mpi.on_gpus:OnGpus"

    def unavailable(self) -> str | None:
        try:
            load()
        except DistBackendError as error:
            return str(error)
        return None

    def describe(self) -> dict[str, str]:
        """For arraycomm-info."""
        facts, gpus = load().facts(), settings.get("ARRAYCOMM_MPI_GPU")
        tolerant = ("ULFM: under mpirun --with-ft ulfm a killed rank is PeerLost, and the others can continue"
                    if facts.family == "Open MPI" else
                    "has ULFM's functions, not tested: mpirun ends the job when a rank is killed")
        return {"library": f"{facts.version} ({facts.path})", "standard": f"MPI {facts.standard[0]}.{facts.standard[1]}",
                "family": facts.family,
                "killed ranks": tolerant if facts.fault_tolerant else "no ULFM: mpirun ends the job when a rank is killed",
                "threads": f"MPI_THREAD_{(facts.threads or 'multiple').upper()}"
                           + ("" if facts.threads else ", which init() will ask for"),
                "arrays on GPUs": f"as ARRAYCOMM_MPI_GPU={gpus} says" if gpus else
                                  "init() asks whether the library takes them" if facts.gpus is None else
                                  f"the library takes {'them' if facts.gpus else 'none: they are staged'}"}

    def meet(self, timeout: float, name: str) -> Rendezvous:
        """Opens MPI_COMM_WORLD. MPI has done the rendezvous already, so the store is local to this process."""
        with announced(self.name, name):  # MPI_Init has no timeout: it blocks until every rank calls it
            rank, size = process.world(process.begin())
        return Rendezvous(rank, size, HashStore(timedelta(seconds=timeout)), None, "mpi", [])

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> MpiCommunicator:
        library = process.begin()
        rank, size = process.world(library)
        if (rank, size) != (meeting.rank, meeting.size):
            raise DistBackendError(f"rank {meeting.rank} of {meeting.size} was given, but this process is rank {rank} of "
                                   f"{size} in MPI's world: leave both to MPI")
        return _open(library, lib.acomm_mpi_world(library.handle), name, timeout)

    def wrap(self, address: int, *, name: str, timeout: float) -> MpiCommunicator:
        """A communicator over the MPI communicator whose handle is at `address`. Collective over its ranks."""
        library = process.begin()
        kind = "int *" if lib.acomm_mpi_handle_bytes(library.handle) == 4 else "intptr_t *"
        comm = int(ffi.cast(kind, address)[0]) & 0xFFFFFFFFFFFFFFFF
        return _open(library, comm, name, timeout)


def _open(library: Library, comm: int, name: str, timeout: float) -> MpiCommunicator:
    wanted_algorithms()  # an unknown one is refused on all ranks before they meet
    endpoint = MpiEndpoint(library, comm, name=name, timeout=timeout)
    try:
        return MpiCommunicator(endpoint, range(endpoint.size), name, timeout, owns=True)
    except BaseException as error:
        endpoint.close(type(error).__name__)
        raise

"""The MPI backend: Open MPI, MPICH, Intel MPI and the MPI-5 ABI, bound at run time. See docs/mpi.md."""

from __future__ import annotations

from datetime import timedelta

from arraycomm._engine import ffi, lib
from arraycomm.core import settings
from arraycomm.core.errors import DistBackendError
from arraycomm.core.rendezvous import Rendezvous, announced
from arraycomm.core.store import HashStore
from arraycomm.core.typed import TYPE_CHECKING, Any
from arraycomm.core.types import DeviceType

from ..errors import Translator
from . import folder, process
from .communicator import MpiCommunicator, options
from .library import Library, load

if TYPE_CHECKING:
    from .server import Server

__all__ = ["MpiBackend", "MpiCommunicator"]


class MpiBackend:
    """Follows arraycomm.core.backend.Backend."""

    name = "mpi"
    devices = frozenset((int(DeviceType.CPU), int(DeviceType.CUDA_HOST), int(DeviceType.ROCM_HOST)))
    on_gpus = "arraycomm.backends.mpi.direct:Direct"

    def unavailable(self) -> str | None:
        try:
            load()
        except DistBackendError as error:
            return str(error)
        return None

    def describe(self) -> dict[str, str]:
        """For arraycomm-info."""
        facts = load().facts()
        tolerant = ("ULFM: under mpirun --with-ft ulfm PeerLost, and the others can go on" if facts.family == "Open MPI" else
                    "has ULFM's functions, unproved: mpirun ends the job when one is killed")
        return {"library": f"{facts.version} ({facts.path})", "standard": f"MPI {facts.standard[0]}.{facts.standard[1]}",
                "family": facts.family,
                "killed ranks": tolerant if facts.fault_tolerant else "no ULFM: mpirun ends the job when one is killed",
                "threads": f"MPI_THREAD_{(facts.threads or 'multiple').upper()}"
                           + ("" if facts.threads else ", which init() will ask for")}

    def meet(self, timeout: float, name: str) -> Rendezvous:
        """MPI_COMM_WORLD: the ranks have met already, so the store is this process's own."""
        with announced(self.name, name):  # MPI_Init waits for ever for ranks that do not call it
            rank, size = process.world(process.begin())
        return Rendezvous(rank, size, HashStore(timedelta(seconds=timeout)), None, "mpi", [])

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> MpiCommunicator:
        library = process.begin()
        rank, size = process.world(library)
        if (rank, size) != (meeting.rank, meeting.size):
            raise DistBackendError(f"rank {meeting.rank} of {meeting.size} was given, but this process is rank {rank} of "
                                   f"{size} in MPI's world: leave both to MPI")
        made = _open(library, lib.acomm_mpi_world(library.handle), name, timeout)
        if place := settings.get(folder.VARIABLE):
            folder.note(place, rank)
        return made

    def serve(self, size: int) -> tuple[str, Server]:
        """For a launcher: the library that its `size` processes of this host are to open, and what brings them together without
        mpirun."""
        from .server import Server  # for the launcher alone: ranks need none of what it loads

        return load().path, Server(size)

    def wrap(self, address: int, *, name: str, timeout: float) -> MpiCommunicator:
        """Of an MPI communicator whose handle lies at `address`. All its ranks call it."""
        library = process.begin()
        kind = "int *" if lib.acomm_mpi_handle_bytes(library.handle) == 4 else "intptr_t *"
        comm = int(ffi.cast(kind, address)[0]) & 0xFFFFFFFFFFFFFFFF
        return _open(library, comm, name, timeout)


def _open(library: Library, comm: int, name: str, timeout: float) -> MpiCommunicator:
    rank, size = process.place(library, comm)
    out: Any = ffi.new("acomm_group **")
    failure = ffi.new("acomm_failure *")
    if lib.acomm_mpi_open(library.handle, comm, options(name, timeout), out, failure):
        raise Translator(rank, range(size), name, lambda rank: "").failure(failure)
    made = MpiCommunicator(library, out[0], range(size), name, timeout)
    try:
        made.meet(timeout)
    except BaseException as error:
        made.close(type(error).__name__)
        raise
    return made

"""What mpirun is to its processes besides starting them: a server by which they find each other. Which one the library's
processes ask: PMIx in Open MPI, PMI-1 in MPICH and its relatives."""

from __future__ import annotations

from arraycomm.core.errors import DistBackendError
from arraycomm.core.shared_library import loaded

from .library import load
from .pmi import PmiServer
from .pmix import PmixServer

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object


class Server(Protocol):
    def variables(self, rank: int) -> dict[str, str]:
        """A rank's environment."""

    def descriptors(self, rank: int) -> tuple[int, ...]:
        """What it inherits."""

    def __enter__(self) -> Server: ...
    def __exit__(self, *_: object) -> None: ...


def serve(size: int) -> Server:
    """For `size` processes of this host, which are to open the library that is found here. Raises DistBackendError where
    there is none, or it brings no server."""
    library = load()
    if library.facts().family != "Open MPI":
        return PmiServer(size)
    path = _pmix()
    if path is None:
        raise DistBackendError(f"{library.facts().version} ({library.path}) brings no libpmix: start its processes with its own "
                               "mpirun")
    return PmixServer(size, path)


def _pmix() -> str | None:
    """libpmix that Open MPI 5 is linked with. Version 4 has it in a plug-in, and takes no server but its mpirun."""
    return next(iter(loaded("libpmix.so")), None)

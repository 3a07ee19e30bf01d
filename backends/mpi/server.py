"""What mpirun is to its processes besides starting them: a server by which they find each other. Which one the library's
processes ask: PMIx in Open MPI, PMI-1 in MPICH and its relatives."""

from __future__ import annotations

import os
from collections.abc import Collection

from arraycomm.core.errors import DistBackendError
from arraycomm.core.shared_library import loaded

from .folder import VARIABLE, Folder
from .library import load
from .pmi import PmiServer
from .pmix import PmixServer


class Server:
    """For `size` processes of this host, which are to open the library that is found here. A context manager.

    news: a descriptor that becomes readable when a process has begun with MPI.
    """

    def __init__(self, size: int) -> None:
        """Raises DistBackendError where there is no library, or it brings no server."""
        self._begun: set[int] = set()
        self._folder = Folder()
        self.news, self._tell = os.pipe()
        try:
            self._server = self._make(size)
        except BaseException:
            self._close()
            raise

    def _make(self, size: int) -> PmiServer | PmixServer:
        library = load()
        if library.facts().family != "Open MPI":
            return PmiServer(size, self._began)
        path = _pmix()
        if path is None:
            raise DistBackendError(f"{library.facts().version} ({library.path}) brings no libpmix: start its processes with its "
                                   "own mpirun")
        return PmixServer(size, path, self._folder.path, self._began)

    def _began(self, rank: int) -> None:
        """In a thread of the server's."""
        self._begun.add(rank)
        os.write(self._tell, b"+")

    def awaited(self, ended: Collection[int]) -> int | None:
        """One of the ranks that have ended for which others wait for good: MPI_Init does for all."""
        if self._begun <= set(ended):
            return None
        return next((rank for rank in ended if rank not in self._begun), None)

    def variables(self, rank: int) -> dict[str, str]:
        """A rank's environment."""
        return {**self._server.variables(rank), VARIABLE: self._folder.path}

    def descriptors(self, rank: int) -> tuple[int, ...]:
        """What it inherits."""
        return self._server.descriptors(rank)

    def __enter__(self) -> Server:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._server.__exit__()
        finally:
            self._close()

    def _close(self) -> None:
        self._folder.close()
        os.close(self.news)
        os.close(self._tell)


def _pmix() -> str | None:
    """libpmix that Open MPI 5 is linked with. Version 4 has it in a plug-in, and takes no server but its mpirun."""
    return next(iter(loaded("libpmix.so")), None)

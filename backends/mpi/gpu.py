"""Whether the MPI library moves arrays on CUDA devices itself. What it says of itself is tried first, by two processes of this
host that are a world of their own: a library that says so and cannot ends them, not the program.
"""

from __future__ import annotations

import os
import subprocess
import sys

from arraycomm._engine import lib
from arraycomm.core import environment, settings

from .library import Library

VARIABLE = "ARRAYCOMM_MPI_GPU"
_LIMIT = 60.0  # s for the trial: two interpreters, and a CUDA context for each
# What mpirun, a scheduler or our launcher has told this process of its own world. Users' settings of a library stay.
_WORLD = ("PMI_", "PMIX_", "PRTE_", "HYD", "MPI_LOCAL", "MPIR_", "OMPI_", "SLURM_", "TORCHELASTIC_", "ARRAYCOMM_STORE",
          "ARRAYCOMM_BACKEND")
_PLACES = ("OMPI_MCA_ess", "OMPI_MCA_orte", "OMPI_MCA_pmix")

_answers: list[str] = []  # the process's one: why not, "" where it does


def refused(library: Library, device: int) -> str:
    """"" where arrays on devices go to the library, else why not, in one sentence. Any rank may ask alone."""
    if not _answers:
        _answers.append(_ask(library, device))
    return _answers[0]


def _ask(library: Library, device: int) -> str:
    wanted = settings.get(VARIABLE)
    if wanted == "1":
        return ""
    version = library.facts().version
    if wanted == "0":
        return f"{VARIABLE}=0"
    if not lib.acomm_mpi_says_cuda(library.handle):
        return f"{version} was built without CUDA, or has it switched off"
    told = environment.detect(os.environ)
    if told is not None and told.size > 1 and not told.local:
        return (f"{version} says that it takes them, but nobody can try the way between several hosts without a risk for the "
                f"program; {VARIABLE}=1 trusts it")
    reason = trial(library.path, device)
    return reason and f"{version} says that it takes them, but a trial in processes of their own ended so: {reason}"


def trial(path: str, device: int, limit: float = _LIMIT) -> str:
    """"" where two processes got right what they sent each other from device to device with this library, else why not."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_WORLD)
            or (name.startswith("OMPI_MCA_") and not name.startswith(_PLACES))}
    command = [sys.executable, "-m", "arraycomm.launch", "--mpi", "--no-prefix", "--nproc-per-node", "2", "-m",
               "arraycomm.backends.mpi.trial", str(device)]
    try:
        process = subprocess.Popen(command, env={**kept, "ARRAYCOMM_MPI_LIBRARY": path, "OMP_NUM_THREADS": "1"}, text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as error:
        return f"it could not be started: {error}"
    with process:
        try:
            said = process.communicate(timeout=limit)[1]
        except subprocess.TimeoutExpired:
            process.terminate()  # the launcher, which ends the others and leaves nothing behind
            return f"it did not end within {limit:g} s"
    return "" if process.returncode == 0 else _reason(said.splitlines(), process.returncode)


def _reason(lines: list[str], code: int) -> str:
    """The end of a process, as the launcher has it; where that says little, its last words."""
    mark = "arraycomm-run: "
    ends = [line.partition(mark)[2].partition("; its last output")[0] for line in lines if mark in line]
    if ends and "exited with" not in ends[-1]:
        return ends[-1]
    return ": ".join([*(ends[-1:] or [f"exit code {code}"]), *lines[-1:]])

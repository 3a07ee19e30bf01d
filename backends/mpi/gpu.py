"""Whether the MPI library moves arrays on CUDA devices itself. What it says of itself is tried first, by two processes of this
host that are a world of their own: a library that says so and cannot ends them, not the program.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping

from arraycomm._engine import lib
from arraycomm.core import environment, settings
from arraycomm.core.lifeline import Lifeline, tie

from . import process
from .library import Library

VARIABLE = "ARRAYCOMM_MPI_GPU"
LIMIT = 60.0  # s for the trial: two interpreters, and a CUDA context for each
GRACE = 15.0  # s that the launcher gets to end what it has started
# What mpirun, a scheduler or our launcher has told this process of its own world. Users' settings of a library stay.
_WORLD = ("PMI_", "PMIX_", "PRTE_", "HYD", "MPI_LOCAL", "OMPI_", "I_MPI_HYDRA_", "I_MPI_PIN_", "I_MPI_PMI", "SLURM_",
          "TORCHELASTIC_", "ARRAYCOMM_STORE", "ARRAYCOMM_SECRET", "ARRAYCOMM_BACKEND", "ARRAYCOMM_MPI_FOLDER")
_SETTINGS = ("OMPI_MCA_", "PMIX_MCA_")
_PLACES = ("OMPI_MCA_ess", "OMPI_MCA_orte", "OMPI_MCA_pmix")

_answers: list[str] = []  # the process's one: why not, "" where it does


def told(library: Library) -> str | None:
    """"" where arrays on devices go to the library, else why not, in one sentence; None where a trial is to tell."""
    if not _answers:
        answer = _ask(library)
        if answer is None:
            return None
        learn(answer)
    return _answers[0]


def tried(library: Library, device: int) -> str:
    """As told(), after a trial where need be. Any rank may ask alone."""
    answer = told(library)
    if answer is None:
        try:
            reason = trial(library.path, device)
        except Exception as error:  # others wait for what this rank finds out
            reason = f"{type(error).__name__}: {error}"
        answer = reason and (f"{library.facts().version} says that it takes them, but a trial in processes of their own ended "
                             f"so: {reason}")
        learn(answer)
    return answer


def learn(answer: str) -> None:
    """What another rank of this host has found out by a trial."""
    _answers[:] = [answer]


def _ask(library: Library) -> str | None:
    wanted = settings.get(VARIABLE)
    if wanted == "1":
        return ""
    version = library.facts().version
    if wanted == "0":
        return f"{VARIABLE}=0"
    if not lib.acomm_mpi_says_cuda(library.handle):
        return f"{version} was built without CUDA, or has it switched off"
    if not _one_host(library):
        return (f"{version} says that it takes them, but the ranks are on several hosts, or their launcher does not say that "
                f"they are not, and nobody can try that way without a risk for the program; {VARIABLE}=1 trusts it")
    return None


def _one_host(library: Library) -> bool:
    _, size = process.place(library, lib.acomm_mpi_world(library.handle))
    told = environment.detect(os.environ)
    return size == 1 or (told is not None and told.size == size and told.local)


def _kept(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(_WORLD)
            or (name.startswith(_SETTINGS) and not name.startswith(_PLACES))}


def trial(path: str, device: int, limit: float = LIMIT) -> str:
    """"" where two processes got right what they sent each other from device to device with this library, else why not.

    They end with this process. It is not forked for them, which a library might not bear: Popen takes vfork() here.
    """
    chosen = os.path.abspath(path) if os.sep in path else path
    environ = {**_kept(os.environ), "ARRAYCOMM_MPI_LIBRARY": chosen, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "arraycomm.launch", "--mpi", "--no-prefix", "--nproc-per-node", "2", "-m",
               "arraycomm.backends.mpi.trial", str(device)]
    with contextlib.ExitStack() as held:
        lifeline = Lifeline()
        held.callback(lifeline.close)
        reader = lifeline.open_reader()
        held.callback(os.close, reader)
        try:
            launcher = subprocess.Popen(command, env=environ, text=True, errors="replace", stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=(reader,),
                                        cwd=environment.IMPORTED_FROM)
        except OSError as error:
            return f"it could not be started: {error}"
        held.enter_context(launcher)
        held.callback(lifeline.close)  # before the wait for the launcher, should an exception end this
        tie(reader, launcher.pid)
        try:
            said = launcher.communicate(timeout=limit)[1]
        except subprocess.TimeoutExpired:
            launcher.terminate()  # it ends the others, and leaves nothing behind
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(GRACE)
            return f"it did not end within {limit:g} s"
    return "" if launcher.returncode == 0 else _reason(said.splitlines(), launcher.returncode)


def _reason(lines: list[str], code: int) -> str:
    """The end of a process, as the launcher has it; where that says little, its last words."""
    mark = "arraycomm-run: "
    ends = [line.partition(mark)[2].partition("; its last output")[0] for line in lines if mark in line]
    if ends and "exited with" not in ends[-1]:
        return ends[-1]
    return ": ".join([*(ends[-1:] or [f"exit code {code}"]), *lines[-1:]])

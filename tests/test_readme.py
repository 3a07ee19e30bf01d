"""The programs of README.md and of the guides, and the way to go on without a lost rank, run as they are."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import arraycomm

from .conformance import mpi
from .ports import free_port

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 300.0  # s, only ends what hangs
ENVIRON = {name: value for name, value in os.environ.items()
           if not name.startswith("ARRAYCOMM_") and name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(path: Path, program: str, *command: str) -> str:
    path.write_text(program)
    done = subprocess.run([sys.executable, *command, str(path)], capture_output=True, text=True, timeout=LIMIT, env=ENVIRON)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LAUNCH = ("-m", "arraycomm.launch")


def test_the_program_of_the_front_page(tmp_path: Path) -> None:
    out = run(tmp_path / "program.py", blocks("README.md")[0], *LAUNCH, "-n", "4")
    assert sorted(out.splitlines()) == [f"[rank {rank}] {rank} [6. 6. 6. 6.]" for rank in range(4)]


def test_the_front_page_has_two_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 100


def after(heading: str, kind: str, count: int = 1) -> list[str]:
    """The first blocks of this kind under the heading of docs/guide/start.md."""
    text = (ROOT / "docs/guide/start.md").read_text().partition(f"\n## {heading}\n")[2]
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)[:count]


def test_start_in_a_session() -> None:
    (typed,) = after("Ranks in a session or a notebook", "python")
    examples = doctest.DocTestParser().get_doctest(typed, {}, "start.md", None, None)
    assert doctest.DocTestRunner().run(examples) == (0, 2)


def test_start_on_one_host(tmp_path: Path) -> None:
    out = run(tmp_path / "program.py", *after("Four ranks on one host", "python"), *LAUNCH, "-n", "4")
    assert [out] == after("Four ranks on one host", "text")


def test_start_on_two_hosts(tmp_path: Path) -> None:
    """As it stands there, but for the address, the port and the hosts' names, which both are this one's."""
    made, first, other = after("Two hosts", "bash", 3)
    (tmp_path / "program.py").write_text(*after("Four ranks on one host", "python"))
    subprocess.run(made, shell=True, cwd=tmp_path, check=True)
    address, hosts = f"127.0.0.1 --master-port {free_port()}", []
    for number, line in enumerate((first, other)):
        line = line.replace("arraycomm-run", f"{sys.executable} -m arraycomm.launch").replace("10.0.0.1", address)
        hosts.append(subprocess.Popen(line, shell=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
                                      env={**ENVIRON, "ARRAYCOMM_HOSTID": str(number)}))
    outs = [host.communicate(timeout=LIMIT)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0]
    assert outs == [*after("Four ranks on one host", "text"), ""]


def test_start_with_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    assert run(tmp_path / "sum.py", *after("JAX", "python"), *LAUNCH, "--jax", "-n", "2").count(" 1.0\n") == 2


def test_start_with_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = run(tmp_path / "train.py", *after("torch", "python"), *LAUNCH, "-n", "2")
    assert out.count("tensor([[1., 1., 1., 1.]])") == 2


def test_from_mpi4py(tmp_path: Path) -> None:
    seen = """
if rank == 1:
    print(data, source, buffer[-1], fives.sum(), left, config["key"][2], square, squares, everywhere)
    print(x[99], mine[0, 0], table, joined.shape, total, high, part, swapped, some, parts, half.size)
if rank == 0:
    print(squares, table[:, 0], high[99])
"""
    out = run(tmp_path / "program.py", blocks("docs/guide/from-mpi4py.md")[1] + seen, *LAUNCH, "-n", "3")
    assert sorted(out.splitlines()) == [
        "[rank 0] [0, 1, 4] [0 1 2] 99",
        "[rank 1] 99 1 None (300,) 3 None [[3. 3. 3.]] [ 1 11 21] [0 1 1 2 2 2] [1 1 1] 1",
        "[rank 1] {'a': 7, 'b': 3.14} 0 999.0 5.0 [0] (2+3j) 1 None [0, 1, 4]"]


def test_hosts_and_ranks_of_other_groups() -> None:
    """Two rows of the table for those who come from mpi4py."""
    def work(group: arraycomm.Group) -> tuple[tuple[int, ...], int]:
        hosts = group.all_gather_object("even" if group.rank % 2 == 0 else "odd")
        here = group.split(hosts.index(hosts[group.rank]))
        assert here is not None
        return here.ranks, group.ranks.index(here.ranks[1])

    assert arraycomm.run(work, 4) == [((0, 2), 2), ((1, 3), 3)] * 2


def test_from_mpi4py_step_by_step(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    path = tmp_path / "program.py"
    path.write_text(blocks("docs/guide/from-mpi4py.md")[0])
    environ = {**mpi.environ("openmpi"), "MPI4PY_LIBMPI": str(mpi.library_file("openmpi"))}
    done = subprocess.run([*mpi.command("openmpi", 2), sys.executable, str(path)], capture_output=True, text=True, timeout=LIMIT,
                          env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("[ True  True]") == 2


def test_going_on_without_the_lost(tmp_path: Path) -> None:
    given = """
import arraycomm, numpy as np, os, signal
group = arraycomm.init()
x = np.ones(2)
if group.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    seen = """
print(group.all_reduce(np.ones(2)))
"""
    (shown,) = (block for block in blocks("docs/reference/ending.md") if "PeerLost" in block)
    out = run(tmp_path / "program.py", given + shown + seen, *LAUNCH, "--keep-going", "-n", "3")
    assert sorted(out.splitlines()) == ["[rank 1] [2. 2.]", "[rank 2] [2. 2.]"]

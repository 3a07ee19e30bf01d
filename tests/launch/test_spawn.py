"""spawn: results, errors and ends of the processes it starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import zipapp
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from arraycomm.core.base.errors import DistError, PeerLost
from arraycomm.core.bootstrap import secret
from arraycomm.launch.context import SpawnContext
from arraycomm.launch.errors import ProcessExitedException, ProcessRaisedException
from arraycomm.launch.spawn import spawn
from tests.ports import free_port

from .test_run import clean_environ, gone, read_pids

Method = Literal["spawn", "forkserver", "fork"]
METHODS: list[Method] = ["spawn", "forkserver", "fork"]


def write_place(rank: int, folder: str) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ARRAYCOMM_STORE"]
    found = secret.find()
    assert found is not None and len(found) == 32
    for name in ("environ", "cmdline"):
        text = Path(f"/proc/self/{name}").read_bytes()
        assert found not in text and found.hex().encode() not in text
    Path(folder, str(rank)).write_text(" ".join(os.environ[name] for name in names) + " " + found.hex())


@pytest.mark.parametrize("method", METHODS)
def test_children_know_their_place(method: Method, tmp_path: Path) -> None:
    assert spawn(write_place, (str(tmp_path),), nprocs=3, start_method=method) == [None] * 3
    rows = [tmp_path.joinpath(str(rank)).read_text().split() for rank in range(3)]
    assert [row[:5] for row in rows] == [[str(r), "3", str(r), "3", "127.0.0.1"] for r in range(3)]
    assert all(row[6] == f"launcher@127.0.0.1:{row[5]}" for row in rows)
    assert len({(row[5], row[7]) for row in rows}) == 1
    assert "RANK" not in os.environ


@pytest.mark.parametrize("how", ["-c", "-"])
def test_a_program_without_a_file(how: str, tmp_path: Path) -> None:
    program = "import arraycomm\ndef work(rank): open(str(rank), 'w')\narraycomm.spawn(work, nprocs=2{})"
    for method, code in (("", 1), (", start_method='fork'", 0)):
        text = program.format(method)
        done = subprocess.run([sys.executable, how, *([text] if how == "-c" else [])], input=text, capture_output=True, text=True,
                              timeout=30, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert not code or "ValueError: spawn cannot run 'work'" in done.stderr.splitlines()[-1]
        assert sorted(path.name for path in tmp_path.iterdir()) == ([] if code else ["0", "1"])


class Odd(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def fail(rank: int, how: str) -> None:
    if rank == 1:
        if how == "raise":
            raise ValueError("the reason")
        if how == "unpicklable":
            raise Odd(1, 2)
        if how == "exit":
            sys.exit(3)
        if how == "hard":
            os._exit(4)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if how == "long":
            raise ValueError("x" * 1_000_000)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_comes_back_with_its_traceback(method: Method) -> None:
    with pytest.raises(ProcessRaisedException, match=r"rank 1 \(pid \d+\) raised ValueError: the reason") as caught:
        spawn(fail, ("raise",), nprocs=2, start_method=method)
    assert "in fail" in str(caught.value) and caught.value.rank == 1
    assert isinstance(caught.value.__cause__, ValueError) and isinstance(caught.value, DistError)


@pytest.mark.parametrize("how", ["unpicklable", "long"])
def test_exceptions_that_travel_badly(how: str) -> None:
    with pytest.raises(ProcessRaisedException, match=r"raised (.*Odd: 1 and 2|ValueError: xxx)"):
        spawn(fail, (how,), nprocs=2, start_method="fork")


@pytest.mark.parametrize(("how", "text", "code", "name"), [
    ("exit", "exited with code 3", 3, None), ("hard", "exited with code 4", 4, None),
    ("interrupt", "exited with code 130", 130, None), ("kill", "was killed by SIGKILL", -9, "SIGKILL")])
def test_ends_without_an_exception(how: str, text: str, code: int, name: str | None, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProcessExitedException, match=rf"rank 1 \(pid \d+\) {text}") as caught:
        spawn(fail, (how,), nprocs=2, start_method="fork")
    assert (caught.value.exit_code, caught.value.signal_name) == (code, name)
    assert "Traceback" not in capfd.readouterr().err


def lose(rank: int) -> None:
    if rank == 0:
        raise PeerLost("rank 1 is gone", ranks=(1,))
    time.sleep(0.1)
    raise ZeroDivisionError


def test_the_cause_is_raised_and_not_what_it_took_along() -> None:
    with pytest.raises(ProcessRaisedException, match="rank 1 .* raised ZeroDivisionError"):
        spawn(lose, nprocs=2, start_method="fork")


def nap(rank: int, gate: int) -> None:
    os.read(gate, 1)


def test_context_join_and_pids() -> None:
    gate, opener = os.pipe()
    context = spawn(nap, (gate,), nprocs=2, join=False, start_method="fork")
    assert isinstance(context, SpawnContext)
    assert context.join(timeout=0.2) is False
    assert context.pids() == [process.pid for process in context.processes] and len(context.pids()) == 2
    os.write(opener, b"12")
    assert context.join(timeout=20) is True and context.join() is True
    os.close(gate)
    os.close(opener)


def test_close_ends_the_children() -> None:
    context = spawn(fail, ("sleep",), nprocs=2, join=False, start_method="fork")
    assert isinstance(context, SpawnContext)
    pids = context.pids()
    context.close()
    assert gone(pids, 30)  # where nobody ends them they sleep for 60 s


PARENT = """
import os, sys, time
sys.path.insert(0, {tests!r})
from arraycomm.launch.spawn import spawn

def child(rank):
    os.write(1, b"pid %d\\n" % os.getpid())  # print writes in pieces, and three ranks write at once
    while True:
        time.sleep(60)

if __name__ == "__main__":
    spawn(child, nprocs=3, start_method={method!r})
"""


@pytest.mark.parametrize("method", METHODS)
def test_no_orphans_when_the_parent_is_killed(method: Method, tmp_path: Path) -> None:
    path = tmp_path / "parent.py"
    path.write_text(PARENT.format(tests=str(tmp_path), method=method))
    process = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=clean_environ())
    pids = read_pids(process, 3)
    process.kill()
    process.wait()
    assert gone(pids)
    process.communicate()


def test_nothing_stays_behind() -> None:
    spawn(quick, nprocs=2, start_method="spawn")  # what is made once: multiprocessing's resource tracker
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    spawn(quick, nprocs=2, start_method="spawn")
    assert (set(os.listdir("/proc/self/fd")), threading.active_count()) == before


def in_another() -> Callable[[int], None]:
    def inner(rank: int) -> None: ...

    return inner


def test_a_program_without_a_guard(tmp_path: Path) -> None:
    """Each rank that imports it says what is missing."""
    program = tmp_path / "program.py"
    program.write_text("import arraycomm\ndef work(rank): pass\narraycomm.spawn(work, nprocs=2)\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, env=clean_environ())
    assert done.returncode == 1 and 'put the call below `if __name__ == "__main__":`' in done.stderr, done.stderr


def in_pool(_: int) -> str:
    with pytest.raises(RuntimeError, match=r"it is daemonic .a worker of a multiprocessing.Pool"):
        spawn(quick, nprocs=2)
    return "refused"


def test_in_a_pool() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(in_pool, (1,)).get(30) == "refused"


@pytest.mark.skipif(subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0,
                    reason="needs mount namespaces")
def test_without_proc() -> None:
    """Ranks that are started by themselves meet over TCP; spawn and the launcher say that they need /proc."""
    world = "import arraycomm, numpy\nwith arraycomm.init() as g: print(g.all_reduce(numpy.ones(2)).tolist())"
    meet = {**clean_environ(), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    hidden = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"', sys.executable]
    ranks = [subprocess.Popen([*hidden, "-c", world], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**meet, "RANK": str(rank)}) for rank in range(2)]
    for process in ranks:
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "[2.0, 2.0]\n"), errors
    for command in (["-c", "import arraycomm, math; arraycomm.spawn(math.sqrt, nprocs=2)"],
                    ["-m", "arraycomm.launch", "--nproc-per-node", "2", __file__]):
        done = subprocess.run([*hidden, *command], capture_output=True, text=True, timeout=60, env=clean_environ())
        assert done.returncode == 1 and "cannot start ranks: /proc is not mounted here" in done.stderr, done.stderr


def quick(rank: int) -> None:
    pass


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ((3,), TypeError, "function to run"), ((quick, (), 0), ValueError, "at least 1"),
    ((quick, (), True), ValueError, "whole number"), ((quick, "ab"), TypeError, r"args is a tuple .*, got str; .* args=.x,."),
    ((quick, 5), TypeError, "got int"), ((lambda rank: None,), ValueError, "cannot run '<lambda>' in new processes"),
    ((in_another(),), ValueError, "cannot run 'in_another.<locals>.inner'")])
def test_wrong_use(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        spawn(*arguments)
    with pytest.raises(ValueError, match="spoon"):
        spawn(quick, start_method="spoon")


def give(rank: int, size: int) -> object:
    if rank == 1:
        sys.exit(0)
    return rank, bytes(size)


@pytest.mark.parametrize("method", METHODS)
def test_results_come_in_the_order_of_the_ranks(method: Method) -> None:
    """Longer than a pipe holds, which a rank that nobody hears would wait at for ever."""
    assert spawn(give, (1 << 20,), nprocs=3, start_method=method) == [(0, bytes(1 << 20)), None, (2, bytes(1 << 20))]


def test_results_of_a_context() -> None:
    context = spawn(give, (10,), nprocs=2, join=False, start_method="fork")
    assert isinstance(context, SpawnContext)
    with pytest.raises(RuntimeError, match="after a join"):
        context.results()
    while not context.join(1):
        pass
    assert context.results() == [(0, bytes(10)), None]
    context.close()


class Local:
    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return _only_there, (os.getpid(),)


def _only_there(pid: int) -> None:
    if os.getpid() != pid:
        raise ValueError("not here")


@pytest.mark.parametrize(("function", "text"), [
    (lambda rank: threading.Lock(), "rank 0 .*TypeError: spawn returns .* and this rank's lock cannot"),
    (lambda rank: Local(), "the result of rank 0 cannot be read here: not here")])
def test_results_that_cannot_travel(function: Callable[[int], object], text: str) -> None:
    with pytest.raises(DistError, match=text):
        spawn(function, nprocs=1, start_method="fork")


MAIN = """
import sys
import arraycomm
{}
class Of:
    def __init__(self, value): self.value = value

def work(rank, of):
    return Of(of.value + rank)

if __name__ == "__main__":
    for method in "spawn", "forkserver", "fork":
        print([answer.value for answer in arraycomm.spawn(work, (Of(7),), 2, start_method=method)])
"""
MAINS = {"package": (["-m", "package"], "package/__main__.py"), "inner package": (["-m", "a.b"], "a/b/__main__.py"),
         "module": (["-m", "package.module"], "package/module.py"), "folder": (["folder"], "folder/__main__.py"),
         "zip file": (["-"], "zipped/__main__.py"), "script": (["script.py"], "script.py")}


@pytest.mark.parametrize("kind", MAINS)
def test_functions_of_all_kinds_of_programs(kind: str, tmp_path: Path) -> None:
    arguments, path = MAINS[kind]
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    package = kind.endswith("package")
    file.write_text(MAIN.format("from . import beside" if package else "import beside" if kind == "folder" else ""))
    (file.parent / "beside.py").write_text("")
    if kind == "zip file":
        zipapp.create_archive(tmp_path / "zipped", tmp_path / "program.pyz")
        arguments = ["program.pyz"]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=100, cwd=tmp_path,
                          env=clean_environ())
    assert (done.returncode, done.stdout) == (0, "[7, 8]\n" * 3), done.stderr


def test_a_package_that_starts_ranks_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import arraycomm\ndef work(rank): pass\narraycomm.spawn(work, nprocs=2)")
    done = subprocess.run([sys.executable, "-m", "package"], capture_output=True, text=True, timeout=100, cwd=tmp_path,
                          env=clean_environ())
    assert done.returncode == 1 and "put the call below `if __name__" in done.stderr

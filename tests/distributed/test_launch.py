"""Programs as users start them: our launcher under torch's arguments, torchrun, spawn()."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arraycomm.distributed as dist
from arraycomm.distributed.launch import parse_args

from ..ports import free_port

LIMIT = 300  # s: what hangs
PROGRAM = """
import os, sys
import numpy as np
import arraycomm.distributed as dist
dist.init_process_group("gloo")
x = np.full(3, dist.get_rank() + 1.0)
dist.all_reduce(x)
assert x.tolist() == [3.0] * 3
dist.destroy_process_group()
places = dist.rendezvous("env://")
store, rank, size = next(places)
store.set(str(rank), "here")
store.wait(["0", "1"])
assert isinstance(store, dist.PrefixStore) and store.list_keys()
store.barrier("end", size)
names = "RANK LOCAL_RANK ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT".split()
assert "torch" not in sys.modules
print(f"{' '.join(os.environ[name] for name in names)} {dist.is_torchelastic_launched()} {sys.argv[1:]}\\n", end="", flush=True)
"""
ELSEWHERE = """
import os, sys
import numpy as np
import arraycomm.distributed as dist
os.environ["MASTER_PORT"] = sys.argv[1]
dist.init_process_group("gloo")
x = np.full(1, dist.get_rank() + 1.0)
dist.all_reduce(x)
print(f"{x.tolist()}\\n", end="", flush=True)
dist.destroy_process_group()
"""
TORCH_PROGRAM = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
x = torch.ones(2)
dist.all_reduce(x)
if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and dist.get_rank() == 1:
    os._exit(3)
dist.barrier()
print(f"{dist.get_rank()} {x.tolist()}\\n", end="", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(*command: str | Path, module: str = "arraycomm.distributed.launch") -> subprocess.CompletedProcess[str]:
    foreign = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "ARRAYCOMM_STORE", "ARRAYCOMM_SECRET", "TORCHELASTIC", "ROLE_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return subprocess.run([sys.executable, "-m", module, *map(str, command)], env=environ, capture_output=True, text=True,
                          timeout=LIMIT)


def test_the_launcher_under_torchs_arguments(program: Path) -> None:
    done = run("--nproc-per-node=2", "--nnodes", "1:1", "--rdzv-id", "job", "--role=train", program, "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"{rank} {rank} train {rank} 2 job 0 True ['--local-rank={rank}', '--epochs', '3']" for rank in range(2)]


def test_local_rank_by_environment_and_modules(program: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "arraycomm.distributed.launch", "--nproc_per_node", "2", "--use_env",
                           "--standalone", "-m", "program", "a"], cwd=program.parent, capture_output=True, text=True,
                          timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} {rank} default {rank} 2 none 0 True ['a']" for rank in range(2)]


def test_a_failing_rank_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(50)")
    done = run("--nproc-per-node=2", "--use-env", tmp_path / "program.py")
    assert done.returncode == 7 and "exited with code 7" in done.stderr


RESTARTED = """
import os, sys
import numpy as np
import arraycomm.distributed as dist
count, most = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_MAX_RESTARTS"]
dist.init_process_group("gloo")
x = np.ones(2)
dist.all_reduce(x)
if int(count) < int(sys.argv[1]) and dist.get_rank() == 1:
    sys.exit(3 + int(count))
dist.barrier()
print(f"{dist.get_rank()} {x[0]} {count} {most} {os.environ['GROUP_WORLD_SIZE']}\\n", end="", flush=True)
"""


def test_a_program_that_meets_elsewhere(tmp_path: Path) -> None:
    """Its rank 0 serves the store there, as nobody else does."""
    (tmp_path / "program.py").write_text(ELSEWHERE)
    done = run("--nproc-per-node=2", "--use-env", tmp_path / "program.py", str(free_port()))
    assert done.returncode == 0 and done.stdout.splitlines() == ["[3.0]"] * 2, done.stderr


@pytest.mark.parametrize("failures", [2, 3])
def test_restarts(failures: int, tmp_path: Path) -> None:
    """All ranks start again, meet and find the number of the attempt; the last failure counts."""
    (tmp_path / "program.py").write_text(RESTARTED)
    done = run("--nproc-per-node=2", "--max-restarts=2", "--use-env", "--log-dir", tmp_path / "logs", tmp_path / "program.py",
               str(failures))
    assert "all ranks are started again, restart 1 of 2" in done.stderr and "restart 2 of 2" in done.stderr
    assert (tmp_path / "logs" / "restart-2" / "rank-0.log").exists()
    if failures == 2:
        assert done.returncode == 0 and sorted(done.stdout.splitlines()) == [f"{rank} 2.0 2 2 1" for rank in range(2)]
    else:
        assert done.returncode == 5 and not done.stdout


@pytest.mark.parametrize(("module", "options", "backend"), [
    ("arraycomm.launch", ["--no-prefix"], "arraycomm"),
    ("arraycomm.distributed.launch", ["--use-env", "--max-restarts=1"], "gloo")])
def test_programs_with_torch_itself(module: str, options: list[str], backend: str, tmp_path: Path) -> None:
    """The launchers' stores serve both. After a restart nothing of the dead ranks is in them, to which torch would connect."""
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(TORCH_PROGRAM)
    done = run(*options, "--nproc-per-node=2", tmp_path / "program.py", backend, module=module)
    assert done.returncode == 0 and ("restart 1 of 1" in done.stderr) == (module != "arraycomm.launch"), done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 [2.0, 2.0]", "1 [2.0, 2.0]"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torchrun is torch's")
@pytest.mark.parametrize("option", ["--standalone", "--nnodes=1"])
def test_torchrun(option: str, program: Path) -> None:
    done = run(option, *() if option == "--standalone" else ["--master-port", str(free_port())], "--nproc-per-node", "2",
               program, "--a", module="torch.distributed.run")
    assert done.returncode == 0, done.stderr
    rows = sorted(line.split() for line in done.stdout.splitlines())
    assert [row[0] for row in rows] == ["0", "1"] and all(row[-2:] == ["True", "['--a']"] for row in rows)


@pytest.mark.parametrize(("arguments", "text"), [
    (["--nproc-per-node", "0", "p"], "whole number of at least 1"),
    (["--nproc-per-node", "²", "p"], "whole number of at least 1"),
    (["--nnodes=1:2", "p"], "torchrun"),
    (["--node-rank=1", "p"], "not below --nnodes"), (["--nnodes=2", "p"], "--master-addr"),
    (["--max-restarts=1", "--nnodes=2", "--master-addr=h", "p"], "torchrun"), (["-m", "--no-python", "p"], "exclude"),
    ([], "training_script"),
    (["--rdzv-endpoint=h:x", "--nnodes=2", "p"], "not a port"), (["--master-port=65536", "p"], "not a port"),
    (["--tee=3", "p"], "--tee is not here: output goes"),
    (["-r", "3", "p"], "--redirects is not here"), (["--run_path", "p"], "--run-path is not here: use torchrun")])
def test_refused_arguments(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args(arguments)
    assert ended.value.code == 2 and text in capsys.readouterr().err


def test_arguments() -> None:
    found = parse_args(["--nnodes=2", "--rdzv-endpoint=[::1]:77", "--rdzv-backend=c10d", "--nproc-per-node=cpu", "p", "-x"])
    assert (found.nnodes, found.master_addr, found.master_port) == (2, "::1", 77)
    assert found.nproc_per_node == len(os.sched_getaffinity(0)) and (found.program, found.arguments) == ("p", ["-x"])
    found = parse_args(["--standalone", "--rdzv-endpoint=h:1", "p"])
    assert (found.nnodes, found.master_addr, found.master_port, found.use_env) == (1, None, 0, False)
    assert parse_args(["--nnodes=2", "--master-addr=h", "p"]).master_port == 29500
    found = parse_args(["--use-env=True", "p", "--use-env=False", "--tee=3"])  # what follows the program is the program's
    assert found.use_env and found.arguments == ["--use-env=False", "--tee=3"]


def meet(index: int, size: int, port: int | None, init_method: str | None) -> None:
    """As the tutorials do: with what spawn() tells, with an address that the function sets, with a URL."""
    if port is not None:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    told: dict[str, Any] = {} if port is None and init_method is None and "MASTER_WAS_SET" not in os.environ else {
        "rank": index, "world_size": size}
    dist.init_process_group("gloo", init_method=init_method, **told)
    assert os.environ.get("MASTER_WAS_SET", os.environ["MASTER_PORT"]) == os.environ["MASTER_PORT"]
    x = np.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [size, size] and dist.get_rank() == index
    dist.destroy_process_group()


@pytest.mark.parametrize("way", ["told", "function", "environment", "url"])
def test_spawn(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    if way == "environment":
        for name, value in (("MASTER_ADDR", "localhost"), ("MASTER_PORT", str(port)), ("MASTER_WAS_SET", str(port))):
            monkeypatch.setenv(name, value)
    url = f"tcp://127.0.0.1:{port}" if way == "url" else None
    assert dist.spawn(meet, (2, port if way == "function" else None, url), 2, True, False, "fork") is None


def fail(index: int, how: str) -> None:
    if index == 1:
        if how == "raise":
            raise ValueError("boo")
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def test_spawn_tells_who_failed() -> None:
    with pytest.raises(dist.ProcessRaisedException, match="boo") as raised:
        dist.spawn(fail, ("raise",), nprocs=2, start_method="fork")
    assert raised.value.error_index == 1 and raised.value.error_pid > 0 and "Traceback" in raised.value.msg
    context = dist.spawn(fail, ("kill",), nprocs=2, join=False, start_method="fork")
    assert context is not None and len(context.pids()) == 2 and sorted(context.sentinels.values()) == [0, 1]
    with pytest.raises(dist.ProcessExitedException) as ended:
        while not context.join(timeout=0.1, grace_period=1.0):
            pass
    assert (ended.value.error_index, ended.value.exit_code, ended.value.signal_name) == (1, -9, "SIGKILL")
    with pytest.raises(TypeError):
        dist.spawn(1)  # type: ignore[arg-type]

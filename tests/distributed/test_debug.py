"""TORCH_DISTRIBUTED_DEBUG: levels, the log, what DETAIL tells before a collective, breakpoint()."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.distributed import debug
from arraycomm.distributed.process_groups import consistency
from arraycomm.distributed.process_groups.consistency import TRACE
from tests.present import present

LIMIT = 60


@pytest.fixture(autouse=True)
def level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug._State, "level", None)
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", raising=False)
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)


def test_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dist.get_debug_level() is dist.DebugLevel.OFF
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    assert dist.get_debug_level() is dist.DebugLevel.DETAIL
    assert (str(dist.DebugLevel.INFO), repr(dist.DebugLevel.INFO), int(dist.DebugLevel.DETAIL)) == (
        "DebugLevel.INFO", "<DebugLevel.INFO: 1>", 2)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "info")
    assert dist.get_debug_level() is dist.DebugLevel.DETAIL
    dist.set_debug_level_from_env()
    assert dist.get_debug_level() is dist.DebugLevel.INFO
    for wrong in (1, "INFO", None):
        with pytest.raises(TypeError, match="takes a DebugLevel"):
            dist.set_debug_level(wrong)  # type: ignore[arg-type]
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "VERBOSE")
    with pytest.raises(ValueError, match="must be OFF, INFO, or DETAIL"):
        dist.set_debug_level_from_env()


@pytest.mark.parametrize(("cpp", "level_name", "effective"), [
    ("ERROR", "DETAIL", logging.ERROR), ("WARNING", "INFO", logging.WARNING), ("INFO", "OFF", logging.INFO),
    ("INFO", "INFO", logging.DEBUG), ("INFO", "DETAIL", TRACE), ("info", "OFF", logging.INFO),
    ("1", "OFF", logging.WARNING), ("", "DETAIL", None), ("nonsense", "OFF", None)])
def test_log_levels(cpp: str, level_name: str, effective: int | None) -> None:
    assert debug.log_level(dist.DebugLevel[level_name], {"TORCH_CPP_LOG_LEVEL": cpp}) == effective


def mismatch(text: str, call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="(?s)Detected mismatch between collectives on ranks. Rank 0 is.*" + text):
        call()


def detail(rank: int) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    x, first = np.ones(4), rank == 0
    mismatch(r"Tensor shape: \(10\) vs \(20\).*\n  rank 1: all_reduce of float64 \(20\), op sum",
             lambda: dist.all_reduce(np.ones(10 if first else 20)))
    mismatch("Tensor dtype: float32 vs int32", lambda: dist.all_reduce(np.ones(1, np.float32 if first else np.int32)))
    mismatch("Op type: all_reduce vs broadcast", lambda: dist.all_reduce(x) if first else dist.broadcast(x, 0))
    mismatch("Op type: barrier vs all_reduce", lambda: dist.barrier() if first else dist.all_reduce(x))
    mismatch("Reduction: sum vs max", lambda: dist.all_reduce(x, dist.ReduceOp.SUM if first else dist.ReduceOp.MAX))
    mismatch("Root: 0 vs 1", lambda: dist.broadcast(x, rank))
    os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
    mismatch("Call stack of rank 1:.*in detail", lambda: dist.all_reduce(np.ones(1 + rank)))
    dist.all_reduce(x)  # the group is as it was
    assert x.tolist() == [2.0] * 4
    strided = np.ones((2, 3)).T if first else np.ones((3, 2))
    dist.all_reduce(strided)
    assert strided.tolist() == [[2.0, 2.0]] * 3
    parts = [np.empty(1), np.empty(2)]
    dist.all_gather(parts, np.full(rank + 1, float(rank)))
    assert [part.tolist() for part in parts] == [[0.0], [1.0, 1.0]]
    core = present(dist.group.WORLD).core
    assert core.all_gather(np.full(2, float(rank))).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert core.all_gather(np.full(rank + 1, rank), counts=[1, 2]).tolist() == [0, 1, 1]
    assert core.all_to_all(np.full(4, rank)).tolist() == [0, 0, 1, 1]
    dist.scatter(x, [x + 1, x + 2] if first else None, 0)
    assert x.tolist() == [3.0 + rank] * 4
    world = present(dist.group.WORLD)
    assert world._plain is None  # a plain call that is refused is tried again, and would be compared twice
    world.set_timeout(timedelta(seconds=15))
    strided = np.ones((2, 3)).T if first else np.ones((3, 2))
    dist.all_reduce(strided)
    work = present(dist.all_reduce(x, async_op=True))
    assert work.wait() and x[0] == 7
    late(first)
    dist.destroy_process_group()


def late(first: bool) -> None:
    """One rank does not come; messages are not checked, and tell it that the other has given up."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    x = np.ones(1)
    if first:
        with pytest.raises(arraycomm.CollectiveTimeout, match="(?s)not all ranks reached all_reduce of float64 .1., op sum"):
            dist.all_reduce(x, group=group)
        dist.send(x, 1)
    else:
        dist.recv(x, 0)


def test_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    arraycomm.spawn(detail, nprocs=2)


def test_what_was_cut_off_is_not_compared() -> None:
    whole = consistency.Fingerprint("1", "all_reduce", "float32", "(1)", "sum", "")
    assert consistency.differences(whole, whole._replace(shape="", reduction="")) == []
    assert consistency.differences(whole, whole._replace(sequence="2")) == ["Sequence number: 1 vs 2"]


PROGRAM = """
import sys
import time
import numpy as np
import arraycomm.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
secret = 40 + dist.get_rank()
for _ in range(3):
    dist.breakpoint(1, skip=2)
x = np.array([secret])
dist.all_reduce(x)
print("sum", x)
dist.destroy_process_group()
"""


def run(tmp_path: Path, environ: dict[str, str], **named: object) -> list[str]:
    """What the two ranks of PROGRAM print, on both streams."""
    started = [subprocess.Popen([sys.executable, "-c", PROGRAM, f"file://{tmp_path}/store", str(rank)], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env={**os.environ, **environ}, cwd=tmp_path) for rank in range(2)]
    commands = ["", "up\np 'it is', secret\nsecret = 60\ncontinue\n"]
    started[1].stdin.write(commands[1])  # type: ignore[union-attr]
    started[1].stdin.flush()  # type: ignore[union-attr]
    told = [process.communicate(timeout=LIMIT)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], told
    return told


def test_breakpoint_and_log(tmp_path: Path) -> None:
    told = run(tmp_path, {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"})
    assert "('it is', 41)" in told[1] and told[1].count("ATTENTION") == 1
    assert "sum [81]" in told[0] or "sum [100]" in told[0]
    for rank in range(2):
        assert "new group '0' (default_pg): global ranks [0, 1], cpu:gloo,cuda:gloo" in told[rank]
        assert f"rank {rank} of 2, debug level INFO" in told[rank]
        assert f"go to <arraycomm.Group 'world': rank {rank} of 2, backend socket>, timeout 1800.0 s" in told[rank]
    assert "pdb" not in told[0].lower()


def test_breakpoint_refuses() -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        dist.breakpoint()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="rank from 0 to 0, got 1"):
            dist.breakpoint(1)
    finally:
        dist.destroy_process_group()


def test_where_the_debugger_reads() -> None:
    with open(os.devnull, "rb") as nothing, open(__file__, "rb") as something:
        assert debug._terminal(lambda _: os.fstat(nothing.fileno())) == "/dev/tty"
        assert debug._terminal(lambda _: os.fstat(something.fileno())) == "/dev/stdin"


def until(found: Callable[[], Any]) -> Any:
    """What it finds, waited for."""
    end = time.monotonic() + 60
    while not (result := found()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return result


def written(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}_*.txt"))


@pytest.mark.parametrize("names", [None, {"fr_trace"}, set()])
def test_dumps(tmp_path: Path, names: set[str] | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dist.init_process_group(store=HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(np.ones(3))
        debug.start_debug_server(port=0, dump_dir="deep/folder", dump_interval=0.01, enabled_dumps=names, start_method="fork")
        dist.all_reduce(np.ones(5))
        folder = tmp_path / "deep" / "folder"
        if names != set():
            state = json.loads(until(lambda: written(folder, "fr_trace"))[0].read_text())
            assert state["size"] == 1 and state["ranks"][0]["pid"] == os.getpid()
            until(lambda: len(written(folder, "fr_trace")) > 1)  # once more
            until(lambda: any("[5]" in "".join(path.read_text().split()) for path in written(folder, "fr_trace")))
        if names is None:
            text = until(lambda: written(folder, "stacks"))[0].read_text()
            assert text.startswith("=== Rank 0 ===") and "test_dumps" in text
        debug.stop_debug_server()
        assert names is None or not written(folder, "stacks")
        assert names or names is None or not list(folder.iterdir())
        assert any("new interpreter" in record.message for record in caplog.records)
    finally:
        dist.destroy_process_group()


def test_the_debug_server_of_the_default_group(tmp_path: Path) -> None:
    dist.init_process_group(store=HashStore(), rank=0, world_size=1)
    try:
        wrong: dict[str, Any]
        for wrong in ({"worker_port": 1}, {"worker_port": None}, {"handlers": [1]}, {"handlers": []}, {"start_method": "thread"},
                      {"dump_interval": 0}, {"dump_interval": float("nan")}, {"dump_interval": True}, {"fetch_timeout": 0}):
            with pytest.raises(ValueError, match=next(iter(wrong)).removeprefix("fetch_")):
                debug.start_debug_server(port=0, **wrong)
        names: Any
        for names in ({"tcpstore"}, {"stacks", 1}):
            with pytest.raises(ValueError, match="stacks, fr_trace, metrics; enabled_dumps has"):
                debug.start_debug_server(port=0, dump_dir=str(tmp_path), enabled_dumps=names)
        with pytest.raises(TypeError, match="set of names"):
            names = "stacks"
            debug.start_debug_server(port=0, dump_dir=str(tmp_path), enabled_dumps=names)
        (tmp_path / "file").touch()
        with pytest.raises(dist.DistBackendError, match="file"):
            debug.start_debug_server(port=0, dump_dir=str(tmp_path / "file"))
        with pytest.raises(AssertionError, match="has not been started"):
            debug.stop_debug_server()
        debug.start_debug_server(port=0)
        with pytest.raises(AssertionError, match="already started"):
            debug.start_debug_server(port=0)
        assert debug._State.server is not None and debug._State.server.url
        debug.stop_debug_server()
        assert debug._State.server is None
    finally:
        dist.destroy_process_group()

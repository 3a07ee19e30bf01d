"""arraycomm-bench from the outside, on the real engine."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import arraycomm
from arraycomm.bench import ranks, sweep
from arraycomm.bench.__main__ import main

_BRIEF = ["-n", "2", "-w", "1", "--batches", "2"]


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=120,
                          env={**clean, **environ})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_all_operations_are_right(tmp_path: Path, transport: str) -> None:
    path = tmp_path / "out.json"
    done = run("arraycomm.bench", "all", "-b", "8", "-e", "64K", "-f", "128", "--nproc", "3", "--transport", transport,
               "--json", str(path), *_BRIEF)
    assert done.returncode == 0, done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    assert done.stdout.count("# Collective test starting:") == 12
    document = json.loads(path.read_text())
    assert document["out_of_bounds"] == {"count": 0, "okay": True}
    where = {"ranks": "3", "transport": {"shm": "shared memory", "tcp": "TCP on one host"}[transport],
             "host": socket.gethostname(), "framework": "numpy", "arraycomm_version": arraycomm.__version__}
    assert "# " + ", ".join(f"{name} {value}" for name, value in where.items()) + "\n" in done.stdout
    assert {name: str(document[name]) for name in where} == where


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_frameworks(framework: str) -> None:
    pytest.importorskip(framework)
    done = run("arraycomm.bench", "all", "-b", "64", "-e", "64", "--nproc", "2", "--framework", framework,
               "-d", "float,bfloat16", *_BRIEF)
    assert done.returncode == 0, done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout


def test_joins_the_launchers_world() -> None:
    done = run("arraycomm.launch", "--nproc-per-node", "2", "-m", "arraycomm.bench", "all_reduce", "-b", "8", "-e", "8",
               *_BRIEF)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Out of bounds values : 0 OK") == 1
    assert "nRanks 2" in done.stdout


def test_a_world_that_is_there_has_its_size(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["all_reduce", "--nproc", "4"]) == 2
    assert "--nproc 4, but this process is a rank of a world of 2 already" in capsys.readouterr().err


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)


def test_a_wrong_value_is_exit_code_1(alone: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "count_wrong", lambda *arguments: 3)
    assert main(["broadcast", "-b", "64", "-e", "64", *_BRIEF]) == 1
    assert "# Out of bounds values : 6 FAILED" in capsys.readouterr().out


def test_right_values_are_exit_code_0(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broadcast", "-b", "64", "-e", "64", "--percentiles", *_BRIEF]) == 0
    assert "# Out of bounds values : 0 OK" in capsys.readouterr().out


def leave_wrong(rank: int, options: object) -> None:
    sys.exit(ranks.WRONG)


def fail(rank: int, options: object) -> None:
    raise LookupError("what a rank says")


@pytest.mark.parametrize(("started", "text"), [(leave_wrong, ""), (fail, "LookupError: what a rank says")])
def test_a_rank_that_fails_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                          started: Callable[[int, object], None], text: str) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ranks, "spawned_rank", started)
    assert main(["all_reduce", "--nproc", "2"]) == 1
    told = capsys.readouterr().err
    assert text in told and bool(told) == bool(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--backend", "nope"], "unknown backend 'nope'; registered are socket"),
        (["--json", "/nowhere/out.json"], "cannot write '/nowhere/out.json': there is no folder '/nowhere'"),
        (["--json", os.sep], "it is a folder, or not ours to write"),
        (["--framework", "torch"], "--framework torch needs torch: pip install torch"),
    ],
)
def test_what_cannot_work_is_told_before_any_rank_starts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                                         arguments: list[str], text: str) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ranks, "_start", lambda options: pytest.fail("ranks were started"))
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    assert main(["all_reduce", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_nothing_to_measure_is_told_before_any_rank_starts(monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["all_reduce", "-o", "band"]) == 2
    assert "nothing to measure: band is defined for bool and integers only: float32" in capsys.readouterr().err


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_terminal_gets_rows_alone(interrupted: bool) -> None:
    """Also when Ctrl-C ends the ranks between them."""
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "arraycomm.bench", "all_reduce", "-b", "8", "-e", "64M" if interrupted else "64"]
    bench = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                             env=os.environ | {"TERM": "xterm"})
    os.close(theirs)
    shown, due = b"", interrupted
    with contextlib.suppress(OSError):  # how the end of a terminal reads
        while data := os.read(terminal, 1 << 16):
            shown += data
            if due and b"8             2" in shown:
                os.killpg(bench.pid, signal.SIGINT)  # what a terminal does
                due = False
    code = bench.wait(60)
    os.close(terminal)
    assert code == (130 if interrupted else 0), shown
    assert b"8             2" in shown and b"\x1b" not in shown and b"Traceback" not in shown


def test_compare() -> None:
    pytest.importorskip("torch", reason="gloo comes with torch")
    done = run("arraycomm.bench", "compare", "--np=2", "--ops=all_reduce,barrier", "--sizes=8", "--rounds=1")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [(row[0], row[1], row[2], row[5]) for row in rows] == [
        ("all_reduce", "8", "ours/shm", "gloo"), ("all_reduce", "8", "ours/tcp", "gloo"),
        ("barrier", "0", "ours/shm", "gloo"), ("barrier", "0", "ours/tcp", "gloo")]
    assert "# Out of bounds values : 0 OK" in done.stdout

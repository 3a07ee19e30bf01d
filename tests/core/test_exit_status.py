"""A rank whose process ends without closing its group, while another one waits: that one is told how the process ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import arraycomm

from ..ports import free_port

LIMIT = 60.0  # s
ENDS = {"exit": 3, "text": 1, "return": 0, "raise": 1, "handlers": 5}
TOLD = {"exit": "its process ended with exit status 3 while", "text": "its process ended with exit status 1 while",
        "return": "its process ended with exit status 0 while", "raise": "exited with KeyError",
        "handlers": "it has closed the group"}  # the status is known to nobody then
PROGRAM = """
import atexit, os, sys
import numpy as np
import arraycomm

def work(way):
    group = arraycomm.init(timeout=50)
    x = np.ones(4)
    if group.rank == 0:
        try:
            group.all_reduce(x)  # the other rank may be known as lost before its part of this one is read
            group.all_reduce(x)
        except arraycomm.PeerLost as error:
            print(error.ranks, error, flush=True)
        group.close()
        return
    group.all_reduce(x)
    if way == "exit":
        sys.exit(3)
    elif way == "text":
        sys.exit("no input")
    elif way == "raise":
        raise KeyError("x")
    elif way == "handlers":
        atexit._run_exitfuncs()
        os._exit(5)

if __name__ == "__main__":
    work(sys.argv[1])
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def _check(way: str, out: str, err: str) -> None:
    assert "(1,)" in out and TOLD[way] in out, (out, err)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("way", ENDS)
def test_by_an_unknown_launcher(way: str, transport: str, program: Path) -> None:
    place = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
             "ARRAYCOMM_TRANSPORT": transport}
    ranks = [subprocess.Popen([sys.executable, str(program), way], env={**place, "RANK": str(rank)}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        ends = [rank.communicate(timeout=LIMIT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    _check(way, *ends[0])
    assert [rank.returncode for rank in ranks] == [0, ENDS[way]], ends


@pytest.mark.parametrize("way", ["exit", "return"])
def test_by_arraycomm_run(way: str, program: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "arraycomm.launch", "-n", "2", "--keep-going", str(program), way], text=True,
                          capture_output=True, timeout=LIMIT)
    _check(way, done.stdout, done.stderr)


def _spawned(rank: int, way: str, folder: str) -> None:
    scope: dict[str, object] = {"__name__": "program"}
    noted = f"open({folder!r} + '/told', 'w').write(f'{{error.ranks}} {{error}}')"
    exec(PROGRAM.replace("print(error.ranks, error, flush=True)", noted), scope)
    scope["work"](way)  # type: ignore[operator]


@pytest.mark.parametrize("way", ["exit", "return"])
def test_by_spawn(way: str, tmp_path: Path) -> None:
    context = arraycomm.spawn(_spawned, (way, str(tmp_path)), nprocs=2, join=False, start_method="spawn")
    try:
        for process in context.processes:
            process.join(LIMIT)
    finally:
        context.close()
    _check(way, (tmp_path / "told").read_text(), "")

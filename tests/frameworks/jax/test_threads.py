"""Programs of several Python threads, which ranks start in different orders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import threading
import jax, jax.numpy as jnp
import arraycomm, arraycomm.frameworks.jax as comm

world = arraycomm.init(timeout=2)
groups = [world.split(0) for _ in range(4)]
x = jnp.ones((200, 200))  # long enough that programs run in threads of XLA's
programs = [comm.jit(lambda x, group=group: comm.all_reduce(jnp.sin(x @ x / 1e3), group=group)) for group in groups]
for program in programs:
    program(x)
begun = [threading.Event() for _ in range(5)]

def run(program, turn):
    begun[turn].wait()
    for i in range(30):
        begun[turn + 1].set()
        try:
            program(x)
        except arraycomm.CollectiveTimeout as error:
            print("said", error)
            return

threads = [threading.Thread(target=run, args=(program, turn)) for turn, program in enumerate(programs[:: 1 - 2 * world.rank])]
world.barrier()
begun[0].set()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("ended")
"""


ONE = """
import jax
import jax.numpy as jnp
import numpy as np

import arraycomm
import arraycomm.frameworks.jax as comm

with arraycomm.init(timeout=2) as group:
    program = jax.jit(lambda x: comm.all_reduce(x, group=group))
    if group.rank == 0:
        group.send(np.ones(1), 1)
        try:
            jax.block_until_ready(program(jnp.ones(3)))
        except Exception as error:
            print("said", error)
        group.abort()
    else:
        group.recv(like=np.ones(1), source=0)
        try:
            group.recv(like=np.ones(1), source=0, timeout=50)
        except arraycomm.DistError:
            print("ended")
"""


@pytest.mark.parametrize("threads", ["", "1"])
def test_one_thread(tmp_path: Path, threads: str) -> None:
    """The launcher gives XLA two, unless it was told; the error of a rank that waits says what one thread may do."""
    script = tmp_path / "program.py"
    script.write_text(ONE)
    environ = {**os.environ, "NPROC": "1", "PJRT_NPROC": threads}  # an empty one is as good as none
    done = subprocess.run([sys.executable, "-m", "arraycomm.launch", "--nproc-per-node", "2", str(script)], text=True,
                          capture_output=True, timeout=60, env=environ)
    said = "".join(line for line in done.stdout.splitlines() if "said" in line)
    assert "CollectiveTimeout" in said, done.stdout + done.stderr
    assert ("PJRT_NPROC=2" in said) == bool(threads), said


@pytest.mark.parametrize("threads", [2, 4])
def test_programs_in_another_order(tmp_path: Path, threads: int) -> None:
    """With fewer threads of XLA's than programs they may lock each other out, which the error says; with enough they run."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run([sys.executable, "-m", "arraycomm.launch", "--nproc-per-node", "2", str(script)], text=True,
                          capture_output=True, timeout=60, env={**os.environ, "PJRT_NPROC": str(threads)})
    said = [line for line in done.stdout.splitlines() if "said" in line]
    assert done.returncode == 0 and done.stdout.count("ended") == 2, done.stdout + done.stderr
    if threads == 4:
        assert not said, said
    else:
        assert not said or any("All 2 threads" in line and "PJRT_NPROC=4" in line for line in said), said

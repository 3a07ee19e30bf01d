"""Processes that end while programs are under way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, time
import jax, jax.numpy as jnp
import arraycomm, arraycomm.frameworks.jax as comm

group = arraycomm.init()
step = jax.jit(lambda x: comm.all_reduce(jnp.sin(x @ x / 1e3), group=group))  # long enough that it runs in a thread of XLA's
x = jnp.ones((300, 300))
step(x).block_until_ready()
if group.rank == 0:
    time.sleep(float(sys.argv[1]))
total = step(x)
if group.rank:
    if sys.argv[2] == "raise":
        raise ValueError("of the program")
    sys.exit()
print("finite", bool(jnp.isfinite(total).all()))
"""


def _run(folder: Path, late: float, how: str) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    return subprocess.run([sys.executable, "-m", "arraycomm.launch", "--nproc-per-node", "2", str(script), str(late), how],
                          capture_output=True, text=True, timeout=50)


def test_results_that_nobody_waits_for(tmp_path: Path) -> None:
    """A rank that does not look at the last step's result takes part in it all the same."""
    done = _run(tmp_path, 1, "exit")
    assert done.returncode == 0 and "finite True" in done.stdout, done.stdout + done.stderr


def test_an_exception_ends_programs(tmp_path: Path) -> None:
    """The process ends although the program waits for a peer that never comes: the launcher then ends that one."""
    done = _run(tmp_path, 100, "raise")
    assert done.returncode == 1 and "of the program" in done.stdout + done.stderr, done.stdout + done.stderr


FAILING = """
import jax, jax.numpy as jnp
import arraycomm, arraycomm.frameworks.jax as comm

with arraycomm.init() as group:
    if group.rank == 0:
        long = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda i, c: jnp.tanh(c @ x), x))
        step = jax.jit(lambda x, y: comm.all_reduce(x + y[0, 0], group=group))
        try:  # the call raises where the peer has gone before it returns
            total = step(jnp.ones(3), long(jnp.ones((500, 500)) / 1e3))
            total.block_until_ready()
        except Exception as error:
            print("handled", "PeerLost" in str(error))
"""


def test_a_failure_is_not_told_again_by_jax(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(FAILING)
    done = subprocess.run([sys.executable, "-m", "arraycomm.launch", "--nproc-per-node", "2", str(script)],
                          capture_output=True, text=True, timeout=50)
    assert done.returncode == 0 and "handled True" in done.stdout, done.stdout + done.stderr
    assert done.stderr.count("Exception ignored") <= 1, done.stderr

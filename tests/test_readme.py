"""The Python of README.md, mpi4py's tutorial, and the way to go on without a lost rank, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRON = {name: value for name, value in os.environ.items()
           if not name.startswith("ARRAYCOMM_") and name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(path: Path, program: str, *command: str) -> str:
    path.write_text(program)
    done = subprocess.run([sys.executable, *command, str(path)], capture_output=True, text=True, timeout=60, env=ENVIRON)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_program(tmp_path: Path) -> None:
    lines = sorted(re.findall(r"\[6. 6. 6. 6.\]", run(tmp_path / "program.py", blocks("README.md")[0])))
    assert len(lines) == 4


def test_beside_mpi4py(tmp_path: Path) -> None:
    given = """
import arraycomm, numpy as np
group = arraycomm.init()
x, part = np.full(2, group.rank + 1.0), np.empty(1)
whole = np.arange(2.0) if group.rank == 0 else None
"""
    seen = """
if group.rank == 1:
    print(x, part, array, source, tag, half.size, told)
"""
    out = run(tmp_path / "program.py", given + blocks("README.md")[1] + seen, "-m", "arraycomm.launch", "--nproc-per-node", "2")
    assert out == "[rank 1] [3. 3.] [1.] [3. 3.] 0 0 2 {'step': 7}\n"


def test_from_mpi4py(tmp_path: Path) -> None:
    seen = """
if rank == 1:
    print(data, source, buffer[-1], fives.sum(), left, told["key"][2], square, squares, everywhere)
    print(x[99], mine[0, 0], table, joined.shape, total, high, part, swapped, some, parts, half.size)
if rank == 0:
    print(squares, table[:, 0], high[99])
"""
    out = run(tmp_path / "program.py", blocks("docs/from-mpi4py.md")[0] + seen, "-m", "arraycomm.launch", "--nproc-per-node", "3")
    assert sorted(out.splitlines()) == [
        "[rank 0] [0, 1, 4] [0 1 2] 99",
        "[rank 1] 99 1 None (300,) 3 None [[3. 3. 3.]] [ 1 11 21] [0 1 1 2 2 2] [1 1 1] 1",
        "[rank 1] {'a': 7, 'b': 3.14} 0 999.0 5.0 [0] (2+3j) 1 None [0, 1, 4]"]


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
    out = run(tmp_path / "program.py", given + blocks("docs/semantics.md")[0] + seen,
              "-m", "arraycomm.launch", "--keep-going", "--nproc-per-node", "3")
    assert sorted(out.splitlines()) == ["[rank 1] [2. 2.]", "[rank 2] [2. 2.]"]

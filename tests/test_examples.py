"""The programs of data parallel training in examples/, each run by the command that its docstring gives."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = [ROOT / "examples" / name for name in ("data_parallel_numpy.py", "data_parallel_torch.py")]


def command(path: Path) -> list[str]:
    """The indented line of the docstring, with this environment in place of the one that README.md makes."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    (line,) = [line.strip() for line in text.splitlines() if line.strip().startswith(".venv/bin/")]
    return shlex.split(line.replace(".venv/bin", str(Path(sys.executable).parent)))


def run(arguments: list[str]) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120,
                          env={**environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_runs(path: Path) -> None:
    assert run(command(path)).strip()


def test_one_rank_learns_what_four_learn() -> None:
    path = ROOT / "examples" / "data_parallel_numpy.py"
    told = [run([sys.executable, "-m", "arraycomm.launch", "--nproc-per-node", str(n), str(path)]) for n in (1, 4)]
    losses = [[float(number) for number in re.findall(r"loss (\S+)", text)] for text in told]
    assert losses[0] == pytest.approx(losses[1], abs=2e-6) and losses[0][-1] < losses[0][0] / 2

"""Programs run as a user runs them: from a file, by a launcher, with the import changed and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
RANKS = 4


def start(program: Path, tmp_path: Path, *launcher: str, without_torch: bool = False) -> str:
    """What it printed. The package's name is changed in the import lines; without_torch: `import torch` fails."""
    lines = program.read_text().splitlines(keepends=True)
    changed = [line.replace("torch.distributed", "arraycomm.distributed") if line.startswith(("import ", "from ")) else line
               for line in lines]
    script = tmp_path / "program.py"
    script.write_text("".join(changed))
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    environ["OMP_NUM_THREADS"] = "1"
    if without_torch:
        (tmp_path / "torch.py").write_text("raise ImportError('torch is not installed here')\n")
        environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", *launcher, "--nproc-per-node", str(RANKS), str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_with_torch_under_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told = start(PROGRAMS / "with_torch.py", tmp_path, "torch.distributed.run", "--standalone")
    assert all(f"rank {rank} is through" in told for rank in range(RANKS))


def test_without_torch(tmp_path: Path) -> None:
    told = start(PROGRAMS / "with_numpy.py", tmp_path, "arraycomm.launch", without_torch=True)
    assert all(f"rank {rank} is through" in told for rank in range(RANKS))

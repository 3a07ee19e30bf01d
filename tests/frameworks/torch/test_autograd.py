"""Collectives with gradients over arraycomm.distributed, beside torch's over gloo and without torch.distributed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).parent


def start(*command: str, **environ: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-m", *command], cwd=HERE.parents[2], capture_output=True, text=True, timeout=150,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **environ})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_as_torch(tmp_path: Path) -> None:
    """On four ranks; any other number runs by the command of autograd_ranks.py."""
    start("tests.frameworks.torch.autograd_ranks", "4", str(tmp_path))
    told = "\n".join((tmp_path / f"errors-{rank}").read_text() for rank in range(4)).strip()
    assert not told, told


def test_without_torch_distributed() -> None:
    out, _ = start("arraycomm.launch", "--nproc-per-node", "2", str(HERE / "alone.py"))
    assert all(f"rank {rank} is through" in out for rank in range(2))


def test_its_modules_do_not_need_torch_distributed() -> None:
    """Beyond what alone.py runs."""
    for name in ("autograd", "sparse"):
        text = (HERE.parents[2] / "arraycomm" / "frameworks" / "torch" / f"{name}.py").read_text()
        assert "import torch.distributed" not in text and "from torch.distributed" not in text

"""arraycomm in gloo's place, on request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
CHECKOUT = Path(__file__).parents[3]


def test_same_answers_and_same_bits(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.frameworks.torch.as_gloo", str(tmp_path)], cwd=CHECKOUT,
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_launcher_asks_for_it(tmp_path: Path) -> None:
    """A program that knows nothing of arraycomm; one line of the log says what it runs over."""
    program = tmp_path / "program.py"
    program.write_text("import torch.distributed as dist\ndist.init_process_group()\ndist.new_group(backend='gloo')\n"
                       "print(dist.get_backend_config(), type(dist.group.WORLD).__name__)\ndist.destroy_process_group()\n")
    done = subprocess.run([sys.executable, "-m", "arraycomm.launch", "--as-gloo", "-n", "2", "--no-prefix", str(program)],
                          capture_output=True, text=True, timeout=100)
    assert done.stdout == "cpu:gloo GlooProcessGroup\n" * 2, done.stdout + done.stderr
    assert done.stderr.count("requests for torch's backend gloo get arraycomm in this program") == 1, done.stderr


def test_anything_else_is_refused() -> None:
    """By import torch, so that no program runs over gloo where it was to run over arraycomm."""
    done = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "ARRAYCOMM_TORCH_AS": "nccl"})
    assert done.returncode and "ARRAYCOMM_TORCH_AS must be gloo or not set, got 'nccl'" in done.stderr, done.stderr

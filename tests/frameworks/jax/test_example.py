"""examples/jax_data_parallel.py: the losses of several ranks are those of one process with the whole batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "jax_data_parallel.py"
TOLERANCE = 2e-5  # sums of a batch and of its parts are rounded differently, and training carries that on


def _losses(*command: str) -> list[list[float]]:
    done = subprocess.run([sys.executable, *command, str(EXAMPLE)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [[float(word) for word in line.split("losses")[1].split()] for line in done.stdout.splitlines() if "losses" in line]


def test_losses_do_not_depend_on_the_number_of_ranks() -> None:
    (alone,) = _losses()
    assert len(alone) == 30 and alone[-1] < 0.7 * alone[0]
    found = _losses("-m", "arraycomm.launch", "--nproc-per-node", "4")
    assert len(found) == 4
    for losses in found:
        worst = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
        assert worst < TOLERANCE, worst


def test_five_lines() -> None:
    text = EXAMPLE.read_text()
    assert [f"# ({n})" in text for n in range(1, 7)] == [True] * 5 + [False]

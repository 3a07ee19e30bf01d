"""frameworks/ray.py in actors of real Ray, where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")


def test_actors() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.frameworks.ray_actors"], cwd=Path(__file__).parents[2],
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr

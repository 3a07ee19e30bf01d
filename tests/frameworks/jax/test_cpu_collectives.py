"""JAX's own collectives between processes, over the engine, in programs that say nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.jax.unchanged import CHECKS

HERE = Path(__file__).parent


def launch(*arguments: str, launcher: tuple[str, ...] = ("-m", "arraycomm.launch", "--jax", "-n", "2", "--no-prefix"),
           **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "ARRAYCOMM_TIMEOUT": "100", **variables}
    return subprocess.run([sys.executable, *launcher, *arguments], env=environ, capture_output=True, text=True, timeout=170)


@pytest.fixture(scope="module")
def told() -> dict[str, list[str]]:
    """What both processes say of each check."""
    done = launch(str(HERE / "unchanged.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, wrong = json.loads(line)
        found.setdefault(name, []).append(wrong)
    return found


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_right_in_two_processes_of_two_devices(told: dict[str, list[str]], name: str) -> None:
    assert told[name] == ["", ""]


def test_jax_does_not_go_on_without(tmp_path: Path) -> None:
    """It logs what a plugin raises, and would take gloo."""
    done = subprocess.run([sys.executable, "-c", "import sys; sys.modules['arraycomm'] = None; import jax; jax.devices()"],
                          env={**os.environ, "ARRAYCOMM_JAX": "1"}, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 1 and "Unable to initialize backend 'cpu': No module named 'arraycomm" in done.stderr, done.stderr

"""How "arraycomm" becomes a backend: by import torch, by ours, in either order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
CHECKOUT = Path(__file__).parents[3]


@pytest.mark.parametrize("first", ["import torch", "import arraycomm.frameworks.torch as t; t.register()"])
def test_is_registered(first: str) -> None:
    code = f"{first}\nimport sys, torch\nprint(torch.distributed.Backend('arraycomm'), 'arraycomm.distributed' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["arraycomm", "False"]  # the second is loaded with the first group


def test_groups_use_it() -> None:
    code = """
import torch, torch.distributed as dist
dist.init_process_group("arraycomm", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(type(dist.group.WORLD).__module__, x.tolist())
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split(" ", 1) == ["arraycomm.frameworks.torch.process_group", "[1.0, 1.0, 1.0]\n"], done.stderr


def test_the_flight_recorder_of_later_torches_leaves_our_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of 2.15 fails in groups that are a class of their own, unless their backend is in this set."""
    import torch.distributed.distributed_c10d as c10d

    import arraycomm.frameworks.torch

    monkeypatch.setattr(c10d, "_FR_SELF_RECORDING_BACKENDS", {"gloo"}, raising=False)
    arraycomm.frameworks.torch.register()
    assert "arraycomm" in c10d._FR_SELF_RECORDING_BACKENDS


def test_import_torch_goes_on_without_the_package(tmp_path: Path) -> None:
    """As in a source tree that hides the installed package and has no engine."""
    (tmp_path / "arraycomm").mkdir()
    (tmp_path / "arraycomm" / "__init__.py").write_text("raise ImportError('the engine is not built')")
    (tmp_path / "arraycomm_torch").symlink_to(CHECKOUT / "arraycomm" / "frameworks" / "torch_plugin")
    code = "import torch, arraycomm_torch\narraycomm_torch.register()\nprint(torch.ones(1).item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.stdout == "1.0\n", done.stderr
    assert "no backend 'arraycomm': ImportError: the engine is not built" in done.stderr
    asked = subprocess.run([sys.executable, "-c", "import arraycomm_torch\narraycomm_torch.register()"], capture_output=True,
                           text=True, timeout=60, cwd=tmp_path, env={**os.environ, "ARRAYCOMM_TORCH_AS": "gloo"})
    assert asked.stderr.endswith("ImportError: the engine is not built\n"), "it was to stand in gloo's place"


def test_torch_calls_the_module_that_cannot_fail() -> None:
    text = (CHECKOUT / "pyproject.toml").read_text()
    assert '\n[project.entry-points."torch.backends"]\narraycomm = "arraycomm_torch:register"\n' in text
    assert '\n"arraycomm_torch" = "arraycomm/frameworks/torch_plugin"\n' in text

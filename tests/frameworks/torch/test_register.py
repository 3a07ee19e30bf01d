"""How "arraycomm" becomes a backend: by import torch, by ours, in either order."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")


@pytest.mark.parametrize("first", ["import torch",
                                   "import arraycomm.frameworks.torch as t; t.register(); t.DistributedDataParallel"])
def test_is_registered(first: str) -> None:
    code = f"{first}\nimport sys, torch\nprint(torch.distributed.Backend('arraycomm'), 'arraycomm.distributed' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "arraycomm" and ("DistributedDataParallel" in first) == (done.stdout.split()[1] == "True")


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

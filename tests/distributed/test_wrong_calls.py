"""wrong_calls.py: here with NumPy where torch cannot be imported and with torch tensors, and with torch.distributed itself."""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arraycomm.launch.spawn import spawn

from .ports import free_port
from .wrong_calls import ACCEPTED, DIFFERENT, HANGS, Setting, calls

LIMIT = 60  # s for all calls together, which take less than 1
QUICK = 5.0  # s for one call; no wrong one waits for anybody


def serve(rank: int, module: str, library: str, port: int, folder: str) -> None:
    """One of two ranks: every call, and as a file what each raised: its type, the types that is made of, and the text."""
    if library == "numpy":
        sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    for name in ("ARRAYCOMM_STORE", "TORCHELASTIC_USE_AGENT_STORE"):
        os.environ.pop(name, None)
    dist, mesh = importlib.import_module(module), importlib.import_module(f"{module}.device_mesh")
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    grid: Any = np.arange(6.0).reshape(2, 3)
    if library == "torch":
        grid = importlib.import_module("torch").from_numpy(grid)
    group, closed = dist.new_group(), dist.new_group()
    dist.barrier(closed)
    dist.destroy_process_group(closed)
    rows = []
    for name, expected, call in calls(Setting(dist, mesh, grid[0], grid.T, rank, group, closed)):
        if name == "a second init":  # the last one while there is a world: it has suffered nothing
            dist.all_reduce(total := grid[0] * 0 + rank + 1)
            assert total.tolist() == [3.0] * 3
            dist.barrier()
        if module.startswith("torch") and expected == HANGS:
            continue
        start = time.monotonic()
        try:
            told = call()
            rows.append((name, expected, [ACCEPTED], repr(told), 0.0))
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            rows.append((name, expected, kinds, str(error), time.monotonic() - start))
    assert not dist.is_initialized() and threading.active_count() < 50
    Path(folder, f"{rank}.json").write_text(json.dumps(rows))


def table(module: str, library: str, folder: Path) -> list[Any]:
    context = spawn(serve, (module, library, free_port(), str(folder)), nprocs=2, join=False)
    assert context is not None
    try:
        assert context.join(LIMIT), "the ranks hang"
    finally:
        context.close()
    return [row for rank in range(2) for row in json.loads((folder / f"{rank}.json").read_text())]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_here(library: str, tmp_path: Path) -> None:
    if library == "torch":
        pytest.importorskip("torch")
    rows, wrong = table("arraycomm.distributed", library, tmp_path), []
    for name, torchs, kinds, text, took in rows:
        expected = DIFFERENT.get(name, (torchs, ""))[0]
        if expected not in kinds or took > QUICK or len(text) < 12:
            wrong.append(f"{name}: expected {expected}, got {kinds[0]}: {text} ({took:.1f} s)")
    assert not wrong, "\n".join(wrong)
    assert DIFFERENT.keys() <= {row[0] for row in rows}, "differences of calls that are not in the table"


def test_torch(tmp_path: Path) -> None:
    """What the table says of torch is what torch does."""
    if pytest.importorskip("torch").__version__.split("+")[0] != "2.13.0":
        pytest.skip("the table is of torch 2.13.0")
    wrong = [f"{name}: the table says {torchs}, torch gives {kinds[0]}: {text}"
             for name, torchs, kinds, text, _ in table("torch.distributed", "torch", tmp_path) if torchs not in kinds]
    assert not wrong, "\n".join(wrong)

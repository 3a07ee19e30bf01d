"""init_process_group() without a backend: NCCL is opened by the first collective on a GPU. Over the stand-ins."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from tests.present import present
from tests.standin import arrays, build


def nccl() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["ARRAYCOMM_NCCL_LIBRARY"])


def opened() -> int:
    """NCCL's communicators in this process."""
    counts = (ctypes.c_int * 2)()
    nccl().standin_nccl_counts(ctypes.byref(counts), ctypes.byref(counts, 4))
    return counts[0]


def summed(x: Any, group: dist.ProcessGroup | None = None) -> list[float]:
    dist.all_reduce(x, group=group)
    values: list[float] = np.asarray(x.numpy() if isinstance(x, arrays.Array) else x).tolist()
    return values


def first_use(rank: int) -> None:
    with arrays.as_cupy() as kind:
        dist.init_process_group()
        assert repr(present(dist.group.WORLD)._config) == "cpu:gloo,cuda:nccl"
        part = dist.new_group([0, 1])
        assert summed(np.ones(3)) == [2, 2, 2] and opened() == 0
        x = arrays.asarray(np.ones(3, np.float32), kind=kind)
        with pytest.raises(RuntimeError, match="send would be the first: call one before"):
            dist.send(x, 1 - rank)
        with pytest.raises(RuntimeError, match="within batch"), present(dist.group.WORLD).core.batch():
            present(dist.group.WORLD).core.all_reduce(x, async_op=True)
        assert opened() == 0
        assert summed(x) == [2, 2, 2] and opened() == 1
        assert summed(x, part) == [4, 4, 4] and opened() == 2
        if rank == 0:
            dist.send(x, 1)
        else:
            assert dist.recv(x, 0) == 0
        dist.destroy_process_group()
        assert opened() == 0


def failure(rank: int) -> None:
    """The group's arrays on GPUs fail on all ranks, and say why; those in host memory go on."""
    with arrays.as_cupy() as kind:
        dist.init_process_group()
        x = arrays.asarray(np.ones(3, np.float32), kind=kind)
        if rank == 0:
            nccl().standin_nccl_fail(b"ncclCommInitRankConfig", 1, 2)
        for _ in range(2):
            with pytest.raises(arraycomm.DistError, match="ncclCommInitRankConfig failed: unhandled system error"):
                dist.all_reduce(x)
        assert summed(np.ones(3)) == [2, 2, 2]
        assert rank or opened() == 0  # the other one's call waits until NCCL gives up
        dist.destroy_process_group()


def chosen(rank: int) -> None:
    """With device_id it is opened at once, as in torch."""
    dist.init_process_group(device_id="cuda:0")
    assert opened() == 1
    dist.destroy_process_group()


@pytest.mark.parametrize("program", [first_use, failure, chosen], ids=lambda program: program.__name__)
def test_lazy(program: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for what the stand-in leaves of an opening that fails
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", build.cudart())
    monkeypatch.setenv("ARRAYCOMM_NCCL_LIBRARY", build.nccl())
    arraycomm.spawn(program, nprocs=2)

"""A rank that is killed while the others wait for it in operations that are made of several: they hear of it at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.launch.errors import ProcessExitedException
from arraycomm.launch.spawn import spawn

CALLS: dict[str, Callable[[], object]] = {
    "monitored_barrier": lambda: dist.monitored_barrier(timeout=timedelta(seconds=50)),
    "monitored_barrier, all": lambda: dist.monitored_barrier(timeout=timedelta(seconds=50), wait_all_ranks=True),
    "all_gather_object": lambda: dist.all_gather_object([None] * 3, 1),
    "recv_object_list": lambda: dist.recv_object_list([None], 2),
    "all_to_all": lambda: dist.all_to_all([np.zeros(1) for _ in range(3)], [np.zeros(1) for _ in range(3)]),
    "a future": lambda: dist.all_reduce(np.zeros(3), async_op=True).get_future().wait(),  # type: ignore[union-attr]
}


def lose(rank: int, name: str, folder: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    dist.barrier()
    if rank == 2:
        Path(folder, "killed").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        CALLS[name]()
    except RuntimeError as error:
        waited = time.monotonic() - float(Path(folder, "killed").read_text())
        lost = isinstance(error, arraycomm.PeerLost) or "Rank 2 failed to pass monitoredBarrier" in str(error)
        Path(folder, str(rank)).write_text(f"{'good' if lost and waited < 30 else 'bad'}: {waited:.2f} s, {error!r}")
    else:
        Path(folder, str(rank)).write_text("no error")
    while not all(Path(folder, str(other)).exists() for other in (0, 1)):
        time.sleep(0.01)


@pytest.mark.parametrize("name", list(CALLS))
def test_a_killed_rank(name: str, tmp_path: Path) -> None:
    """PeerLost comes within a second; 30 s stand for a busy machine, and 50 for a wait that did not hear of it."""
    context = spawn(lose, (name, str(tmp_path)), nprocs=3, join=False, start_method="forkserver")
    try:
        context.join(240)
    except ProcessExitedException as ended:
        assert "rank 2" in str(ended)
    finally:
        context.close()
    texts = {rank: (tmp_path / str(rank)).read_text() for rank in (0, 1) if (tmp_path / str(rank)).exists()}
    assert set(texts) == {0, 1} and all(text.startswith("good") for text in texts.values()), texts

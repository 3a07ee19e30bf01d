"""distributed/operations/work.py: what must not happen where a Work is dropped; what does is in work_checks.py."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import numpy as np

import arraycomm.distributed as dist
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.core.diagnostics.watch import Watcher, attach
from tests.present import present


class _Ends:
    """A watcher that writes down which threads tell it of an end."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def begin(self, call: Any) -> Any:
        return call

    def begun(self, token: Any) -> None:
        pass

    def waits(self, token: Any, begins: bool = True) -> None:
        pass

    def end(self, token: Any, error: BaseException | None) -> None:
        self.threads.append(threading.get_ident())

    def closed(self, group: Any) -> None:
        pass


def test_a_dropped_work_tells_no_watcher_in_the_thread_that_drops_it() -> None:
    """That may be in a garbage collection, with the watcher's lock held."""
    dist.init_process_group(store=HashStore(), rank=0, world_size=1)
    ends = _Ends()
    attach(present(dist.group.WORLD).core, cast(Watcher, ends))
    work = dist.all_reduce(np.ones((4, 4))[:, ::2], async_op=True)
    assert work is not None
    dist.barrier()  # it has ended then
    ends.threads.clear()
    del work
    end = time.monotonic() + 20
    while not ends.threads and time.monotonic() < end:
        time.sleep(0.001)
    dist.destroy_process_group()
    assert len(ends.threads) == 1 and threading.get_ident() not in ends.threads

"""monitored_barrier(): all ranks pass or none, whoever was late or missed one before."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

import arraycomm.distributed as dist
from arraycomm.distributed.operations.barriers import _Monitored
from arraycomm.launch.spawn import spawn
from tests.present import present

SHORT, LONG = timedelta(milliseconds=300), timedelta(seconds=60)
FAILED = "failed to pass monitoredBarrier in "
_steps: list[int] = []


def told(timeout: timedelta = LONG, group: Any = None, wait_all: bool = False) -> str:
    """What it raises; "" where it passes."""
    try:
        dist.monitored_barrier(group, timeout, wait_all)
    except RuntimeError as error:
        return str(error)
    return ""


def collective() -> None:
    x = np.ones(1)
    dist.all_reduce(x)
    assert x[0] == dist.get_world_size()


def after(rank: int, others: Callable[[], Any], late: Callable[[], Any]) -> None:
    """others() on all ranks but this one, and when it has ended on all of them, late() on this."""
    _steps.append(len(_steps))
    group: Any = dist.group.WORLD
    store = group.get_group_store()
    if dist.get_rank() == rank:
        store.wait([f"{_steps[-1]}/{other}" for other in range(dist.get_world_size()) if other != rank], LONG)
        late()
    else:
        others()
        store.set(f"{_steps[-1]}/{dist.get_rank()}", "")


def fails(name: str, timeout: timedelta = SHORT, **given: Any) -> Callable[[], None]:
    def check() -> None:
        found = told(timeout, **given)
        assert f"{name} {FAILED}300 ms" in found, found

    return check


def without_waiting() -> None:
    """A timeout of 0: who is not there yet is missing."""
    if dist.get_rank() == 0:
        found = told(timedelta(0))
        assert found == f"[Rank 0]: Rank 1 {FAILED}0 ms: Rank 0 timed out in monitoredBarrier", found
    collective()


def passes() -> None:
    found = told()
    assert not found, found


def late_ones_fail_too() -> None:
    for rank in range(3):
        after(rank, fails(f"Rank {rank}"), fails(f"Rank {rank}", LONG))
        passes()
        collective()
        passes()
        passes()


def missed_ones() -> None:
    """With a collective behind them, the next is the next for all."""
    for rank in range(3):
        for times in (1, 2):
            for _ in range(times):
                if dist.get_rank() != rank:
                    fails(f"Rank {rank}")()
            collective()
            passes()


def missed_without_a_collective() -> None:
    """The one that is called next counts as missed, then they meet again."""
    for rank in range(3):
        def others(rank: int = rank) -> None:
            for _ in range(3):
                fails(f"Rank {rank}")()

        after(rank, others, fails(f"Rank {rank}", LONG))
        passes()
        collective()


def all_that_are_missing() -> None:
    if dist.get_rank() == 0:
        fails("Ranks 1, 2", wait_all=True)()
    dist.barrier()
    if dist.get_rank() == 2:
        fails("Ranks 0, 1", wait_all=True)()
    dist.barrier()
    passes()


def beside_asynchronous_collectives() -> None:
    """They count where they are called, whenever they begin."""
    for _ in range(20):
        xs = [np.ones(1 << n) for n in (0, 18, 3)]
        works: list[Any] = [dist.all_reduce(x, async_op=True) for x in xs]
        passes()
        for work in works:
            work.wait()


def in_a_group() -> None:
    group = dist.new_group([1, 2])
    if dist.get_rank() == 2:
        assert f"[Rank 2]: Rank 1 {FAILED}" in told(SHORT, group)
    dist.barrier()
    if dist.get_rank() == 1:  # late; a collective of the world is none of the group
        assert f"[Rank 2]: Rank 1 {FAILED}300 ms" in told(LONG, group)
    if dist.get_rank():
        assert not told(LONG, group)
        found = told(SHORT) if dist.get_rank() == 1 else f"[Rank 1]: Rank 0 {FAILED}"
        assert f"[Rank 1]: Rank 0 {FAILED}" in found
    collective()
    passes()


class _Told(logging.Handler):
    def __init__(self, store: Any) -> None:
        super().__init__()
        self.lines, self.store = list[str](), store

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.store.set("told", "")  # for those that are waited for


def a_long_wait_is_told() -> None:
    group: Any = dist.group.WORLD
    said, log = _Told(group.get_group_store()), logging.getLogger("arraycomm")
    os.environ["ARRAYCOMM_WAIT_NOTICE"] = "0.1"
    log.addHandler(said)
    if dist.get_rank():
        said.store.wait(["told"], LONG)
    passes()
    log.removeHandler(said)
    del os.environ["ARRAYCOMM_WAIT_NOTICE"]
    if not dist.get_rank():
        begin, _, end = said.lines[0].partition(" s in monitored_barrier() ")
        assert begin.startswith("[Rank 0]: has waited ") and end.endswith(" for ranks 1, 2"), said.lines


def ends_that_a_stranger_writes() -> None:
    """A store without authentication lets one in: no rank passes by what it says."""
    part = _Monitored(present(dist.group.WORLD))  # takes this number, the next is the barrier's
    if dist.get_rank() == 0:
        part._store.set(part._key("end", part._count + 1), "{}")
        part._store.set("written", "")
    part._store.wait(["written"], LONG)
    found = told()
    assert "sign" in found, found
    collective()
    passes()


def nothing_is_left_under_way() -> None:
    """A rank that has seen one fail leaves in good order: the others go on without it."""
    if dist.get_rank() != 1:
        fails("Rank 1")()
    dist.barrier()
    if dist.get_rank() == 2:
        dist.destroy_process_group()
        return
    x = np.zeros(1)
    for _ in range(50):
        if dist.get_rank():
            dist.send(np.ones(1), 0)
            dist.recv(x, 0)
        else:
            dist.recv(x, 1)
            dist.send(x, 1)
    dist.destroy_process_group()


def run(rank: int) -> None:
    dist.init_process_group("gloo", timeout=LONG)
    passes()
    for check in (late_ones_fail_too, without_waiting, missed_ones, missed_without_a_collective, all_that_are_missing,
                  beside_asynchronous_collectives, in_a_group, a_long_wait_is_told, ends_that_a_stranger_writes,
                  nothing_is_left_under_way):
        check()


def test_all_pass_or_none() -> None:
    spawn(run, nprocs=3, start_method="forkserver")

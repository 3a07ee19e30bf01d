"""The end of a group in a process that it does not belong to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

import arraycomm
from arraycomm.core.group import window as core_window
from tests.core.forked import names_the_fork
from tests.present import present


def _closed_by_a_child(rank: int, transport: str) -> None:
    os.environ["ARRAYCOMM_TRANSPORT"] = transport
    with arraycomm.init() as group:
        group.all_reduce(np.ones(4), async_op=True).wait()  # so that there is a thread, which the child will not have
        pending = group.irecv(1 - rank, like=np.zeros(4))
        child = os.fork()
        if not child:
            signal.alarm(30)  # ends it where it hangs
            group.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        group.barrier()
        group.send(np.full(4, float(rank)), 1 - rank)
        assert pending.result().array.tolist() == [1.0 - rank] * 4


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_forked_child_that_closes_the_group_leaves_it_to_its_parent(transport: str) -> None:
    arraycomm.spawn(_closed_by_a_child, (transport,), nprocs=2)


def _aborted_by_a_child(rank: int, transport: str) -> None:
    os.environ["ARRAYCOMM_TRANSPORT"] = transport
    with arraycomm.init() as group, present(group.split(0)) as other:
        window = core_window.Window(group, np.zeros(4), "window")
        group.all_reduce(np.ones(4), async_op=True).wait()
        pending = group.irecv(1 - rank, like=np.zeros(1 << 20))  # by a copy in which both sides take part
        child = os.fork()
        if not child:
            signal.alarm(30)
            uses: list[Callable[[], object]] = [
                lambda: group.abort("the child's own trouble"), group.check_peers, lambda: group.subgroup([rank], "mine"),
                lambda: core_window.Window(group, np.zeros(4), "another"), lambda: window.put(np.ones(1), 1 - rank, 0),
                lambda: other.abort(), group.barrier, lambda: window.signal(1 - rank), lambda: window.fence(1.0)]
            refused = [names_the_fork(use) for use in uses]
            group.close()
            os._exit(0 if all(refused) else 1 + refused.index(False))
        status = os.waitpid(child, 0)[1]
        assert status == 0, status >> 8
        group.barrier()
        other.barrier()
        group.send(np.full(1 << 20, float(rank)), 1 - rank)
        assert (pending.result().array == 1.0 - rank).all()
        window.put(np.full(4, rank + 1.0), 1 - rank, 0)
        window.fence(60)
        group.check_peers()
        window.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_forked_child_that_aborts_the_group_is_told_and_leaves_it_to_its_parent(transport: str) -> None:
    arraycomm.spawn(_aborted_by_a_child, (transport,), nprocs=2)

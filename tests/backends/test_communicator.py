"""The end of a group in a process that it does not belong to."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import arraycomm


def _closed_by_a_child(rank: int, transport: str) -> None:
    os.environ["ARRAYCOMM_TRANSPORT"] = transport
    with arraycomm.init() as group:
        group.all_reduce(np.ones(4), async_op=True).wait()  # so that there is a thread, which the child will not have
        pending = group.irecv(np.zeros(4), 1 - rank)
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

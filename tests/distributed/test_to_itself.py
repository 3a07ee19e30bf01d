"""Messages of a rank to itself: what was sent before is received, and what nobody can send is refused at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import arraycomm.distributed as dist
from tests.present import present


@pytest.fixture
def world() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield present(dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.parametrize("source", [{"src": 0}, {"group_src": 0}, {}], ids=["src", "group_src", "any"])
@pytest.mark.parametrize("grouped", [False, True])
def test_recv_from_oneself(world: dist.ProcessGroup, source: dict[str, int], grouped: bool) -> None:
    where = {**source, "group": dist.new_group([0])} if grouped else source
    x, y = np.arange(3.0), np.zeros(3)
    with pytest.raises(ValueError, match="nothing with tag 0.*isend"):
        dist.recv(y, **where)
    sent = present(dist.isend(x, 0, tag=1, group=where.get("group")))
    with pytest.raises(ValueError, match="nothing with tag 2"):
        dist.recv(y, tag=2, **where)  # of another tag
    assert dist.recv(y, tag=1, **where) == 0 and y.tolist() == x.tolist()
    sent.wait()
    with pytest.raises(ValueError, match="nothing with tag 1"):
        dist.recv(y, tag=1, **where)  # it was taken


def test_what_another_receive_waits_for(world: dist.ProcessGroup) -> None:
    """A message belongs to the receive that was first."""
    x, first, y = np.arange(3.0), np.zeros(3), np.zeros(3)
    received = present(dist.irecv(first, 0))
    sent = present(dist.isend(x, 0))
    with pytest.raises(ValueError, match="nothing with tag 0"):
        dist.recv(y, 0)
    sent.wait()
    received.wait()
    assert first.tolist() == x.tolist() and not y.any()


def test_an_empty_and_a_long_message(world: dist.ProcessGroup) -> None:
    for x in (np.zeros(0), np.arange(1e6)):
        sent, y = present(dist.isend(x, 0)), np.ones_like(x)
        assert dist.recv(y, 0) == 0 and np.array_equal(x, y)
        sent.wait()

"""Checks of messages between two ranks."""

from __future__ import annotations

import warnings

import numpy as np

import arraycomm.distributed as dist
from tests.present import present

from .checks import Library, check, same


@check
def send_and_recv(lib: Library) -> None:
    """Everybody sends to the next; with tags, by ranks of the world and of a group."""
    after, before = (lib.rank + 1) % lib.size, (lib.rank - 1) % lib.size
    for tag in (0, 5):
        for dtype in ("float64", "uint8", "bool"):
            x, out = lib.array([lib.rank, 1], dtype), lib.array([0, 0], dtype)
            if lib.rank:
                assert dist.recv(out, before, tag=tag) == before
            dist.send(x, after, tag=tag)
            if not lib.rank:
                assert dist.recv(out, before, tag=tag) == before
            same(out, np.array([before, 1]).astype(dtype))
    group = dist.new_group([1, 2])
    if lib.rank == 1:
        dist.send(lib.array([4.0]), group=group, group_dst=1)
    elif lib.rank == 2:
        out = lib.zeros(1)
        assert dist.recv(out, group=group, group_src=0) == 1
        same(out, [4.0])


@check
def tags_and_any_source(lib: Library) -> None:
    if lib.rank:
        dist.send(lib.array([1.0 * lib.rank]), 0, tag=1)
        dist.send(lib.array([10.0 * lib.rank]), 0, tag=2)
        return
    out, seen = lib.zeros(1), {}
    for _ in range(1, lib.size):
        source = dist.recv(out, tag=2)
        seen[source] = float(out[0])
    assert seen == {rank: 10.0 * rank for rank in range(1, lib.size)}
    for rank in range(lib.size - 1, 0, -1):
        assert dist.recv(out, rank, tag=1) == rank
        same(out, [1.0 * rank])


@check
def isend_and_irecv(lib: Library) -> None:
    after, before = (lib.rank + 1) % lib.size, (lib.rank - 1) % lib.size
    out, x = lib.zeros(3), lib.array([1.0, 2, lib.rank])
    works = [dist.irecv(out, before), dist.isend(x, after)]
    assert all(work is not None and work.wait() is True and work.is_completed() for work in works)
    same(out, [1.0, 2, before])
    assert present(works[0]).source_rank() == before
    to_me = present(dist.isend(x, lib.rank, tag=9))
    from_me = present(dist.irecv(out, lib.rank, tag=9))
    assert to_me.wait() and from_me.wait()
    same(out, [1.0, 2, lib.rank])
    anybody = present(dist.irecv(out, tag=3))
    dist.send(x, after, tag=3)
    assert anybody.wait() and anybody.source_rank() == anybody._source_rank() == before


@check
def outside_of_the_group(lib: Library) -> None:
    group = dist.new_group([0, 1])
    if lib.rank < 2:
        return
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert dist.isend(lib.array([1.0]), 0, group=group) is None
        assert dist.irecv(lib.array([1.0]), 0, group=group) is None
        assert dist.recv(lib.array([1.0]), 0, group=group) == -1
    assert [str(warning.message).partition(" on ")[0] for warning in seen] == ["Running isend", "Running irecv", "Running irecv"]
    try:
        dist.send(lib.array([1.0]), 0, group=group)
    except ValueError as error:
        assert "Invalid process group specified" in str(error)
    else:
        raise AssertionError("send outside of the group")


@check
def batches(lib: Library) -> None:
    after, before = (lib.rank + 1) % lib.size, (lib.rank - 1) % lib.size
    outs = [lib.zeros(200000), lib.zeros(2)]
    ops = [dist.P2POp(dist.isend, lib.array(np.full(200000, 1.0 + lib.rank)), after),
           dist.P2POp(dist.isend, lib.array([5.0, lib.rank]), group_peer=before, tag=1),
           dist.P2POp(dist.irecv, outs[0], before), dist.P2POp(dist.irecv, outs[1], after, dist.group.WORLD, 1)]
    assert (ops[1].peer, ops[1].group_peer, ops[1].tag) == (before, before, 1) and "isend" in repr(ops[0])
    works = dist.batch_isend_irecv(ops)
    assert len(works) == 4 and all(work.wait() for work in works)
    same(outs[0], np.full(200000, 1.0 + before))
    same(outs[1], [5.0, after])

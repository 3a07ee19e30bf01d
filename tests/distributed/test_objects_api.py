"""The experimental object API, and ProcessGroup's own methods, on three ranks."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.distributed import _dist2
from arraycomm.distributed.process_groups.options import AllgatherOptions, ReduceScatterOptions

RANKS = 3
LIMIT = timedelta(seconds=60)


def check_one_array(rank: int, group: Any) -> None:
    x = np.full(2, rank + 1)
    assert group.allreduce(x).wait() and x.tolist() == [6, 6]
    assert group.allreduce([x], dist.ReduceOp.MAX, LIMIT).result()[0] is x and x.tolist() == [6, 6]
    group.broadcast([x := np.full(2, rank)], 1).wait()
    assert x.tolist() == [1, 1]
    group.reduce(x := np.array([rank + 1]), 2, dist.ReduceOp.PRODUCT).wait()
    assert rank != 2 or x.tolist() == [6]
    check_options(rank, group)
    group.all_gather_single(y := np.zeros(3, int), np.array([rank])).wait()
    assert y.tolist() == [0, 1, 2]
    group.reduce_scatter_single(y := np.zeros(1, int), np.arange(3) + rank).wait()
    assert y.tolist() == [3 * rank + 3]
    for call in (group.all_to_all_single, group.alltoall_base):
        call(y := np.zeros(3, int), np.arange(3) + 10 * rank, [], []).wait()
        assert y.tolist() == [rank, 10 + rank, 20 + rank]
    group.allreduce([x := np.array([rank]), y := np.array([rank, 1])]).wait()
    assert x.tolist() == [3] and y.tolist() == [3, 3]
    with pytest.raises(TypeError, match="timedelta"):
        group.allreduce(x, timeout=3)


def check_options(rank: int, group: Any) -> None:
    largest, second = dist.AllreduceOptions(), dist.BroadcastOptions()
    largest.reduceOp, largest.timeout, second.rootRank = dist.ReduceOp.MAX, LIMIT, 1
    for given, named in (((largest,), {}), ((), {"opts": largest})):
        group.allreduce([x := np.array([rank])], *given, **named).wait()
        assert x.tolist() == [2]
    group.broadcast([x := np.array([rank])], second).wait()
    assert x.tolist() == [1]
    both = dist.ReduceOptions()
    both.rootRank, both.reduceOp = 2, dist.ReduceOp.MAX
    group.reduce([x := np.array([5 - rank])], both).wait()
    assert rank != 2 or x.tolist() == [5]
    group.allgather([ys := [np.zeros(1, int) for _ in range(RANKS)]], [np.array([rank])], AllgatherOptions()).wait()
    assert [int(y[0]) for y in ys] == [0, 1, 2]
    group.barrier(dist.BarrierOptions()).wait()


def check_lists(rank: int, group: Any) -> None:
    x, parts = np.array([rank]), [np.zeros(1, int) for _ in range(RANKS)]
    for outputs, input in ((parts, x), ([parts], [x])):
        group.allgather(outputs, input).wait()
        assert [int(part[0]) for part in parts] == [0, 1, 2]
        group.gather(outputs if rank == 1 else [], input, 1).wait()
    group.scatter([y := np.zeros(1, int)], [[part * 2 for part in parts]] if rank == 0 else [], 0).wait()
    assert y.tolist() == [2 * rank]
    group.reduce_scatter([y], [[np.array([i + rank]) for i in range(RANKS)]]).wait()
    assert y.tolist() == [3 * rank + 3]
    group.alltoall(parts, [np.array([10 * rank + i]) for i in range(RANKS)]).wait()
    assert [int(part[0]) for part in parts] == [rank, 10 + rank, 20 + rank]


def check_several(rank: int, group: Any) -> None:
    pair = [np.array([rank]), np.array([rank + 1])]
    group.allreduce_coalesced(pair).wait()
    assert [int(x[0]) for x in pair] == [3, 6]
    for call in (group.all_gather_single_coalesced, group.allgather_into_tensor_coalesced):
        work = call(outputs := [np.zeros(3, int) for _ in range(2)], [np.array([rank]), np.array([-rank])])
        assert work.wait() and work.is_completed() and [y.tolist() for y in work.result()] == [[0, 1, 2], [0, -1, -2]]
        assert outputs[1].tolist() == [0, -1, -2]
    largest = ReduceScatterOptions()
    largest.reduceOp = dist.ReduceOp.MAX
    group.reduce_scatter_single_coalesced(outputs := [np.zeros(1, int)], [np.arange(3)], largest).wait()
    assert outputs[0].tolist() == [rank]
    with pytest.raises(ValueError, match="as many outputs as inputs"):
        group.all_gather_single_coalesced(outputs, [])


def check_messages(rank: int, group: Any) -> None:
    sent, come = np.array([rank]), np.zeros(1, int)
    works = [group.send([sent], (rank + 1) % RANKS, 5), group.recv([come], (rank - 1) % RANKS, 5)]
    assert all(work.wait() for work in works) and come[0] == (rank - 1) % RANKS
    works = [group.send([sent], (rank + 1) % RANKS, 0), group.recv_anysource([come], 0)]
    assert all(work.wait() for work in works) and works[1].source_rank() == (rank - 1) % RANKS
    assert group.barrier().wait() and group.barrier(LIMIT).wait()
    group.monitored_barrier(LIMIT, wait_all_ranks=True)


def check_timeouts(rank: int, group: Any) -> None:
    part = group.split_group([0, 1, 2], timeout=LIMIT)
    part.set_timeout(timedelta(seconds=0.2))
    for wrong, error in ((3, TypeError), (None, TypeError), (timedelta(0), ValueError)):
        with pytest.raises(error):
            part.set_timeout(wrong)
    if rank == 0:
        with pytest.raises(arraycomm.CollectiveTimeout):
            part.allreduce(np.zeros(1)).wait()
    group.barrier().wait()
    part.shutdown()


def check_splits(rank: int, group: Any) -> None:
    part = group.split_group([2, 0], group_desc="some", group_name="mine")
    assert (part is None) == (rank == 1)
    if part is not None:
        part.allreduce(x := np.array([rank])).wait()
        assert x.tolist() == [2] and (part.rank(), part.ranks, part.group_desc, part.group_name) == (
            {2: 0, 0: 1}[rank], (2, 0), "some", "mine")
    for ranks, error in (([0, 0], ValueError), ([7], ValueError), (["a"], TypeError)):
        with pytest.raises(error):
            group.split_group(ranks)


def check_unregistered(rank: int) -> None:
    groups = [_dist2.new_group("gloo", LIMIT, "cpu") for _ in range(2)]
    assert not dist.is_initialized() and groups[0].group_name != groups[1].group_name
    for check in (check_one_array, check_lists, check_several, check_messages, check_splits, check_timeouts):
        check(rank, groups[1])
    dist.all_reduce(x := np.array([rank]), group=groups[0])
    assert x.tolist() == [3]
    check_current(groups)
    groups[0].get_group_store().set(f"from {rank}", str(rank))
    assert [groups[0].get_group_store().get(f"from {other}") for other in range(RANKS)] == [b"0", b"1", b"2"]
    dist.init_process_group("gloo", timeout=LIMIT)
    third = _dist2.new_group("gloo", LIMIT, "cpu")
    for group in (dist.group.WORLD, third):
        group.allreduce(x := np.array([rank])).wait()  # type: ignore[union-attr]
        assert x.tolist() == [3]
    dist.destroy_process_group()
    assert not third.closed and dist.get_rank(third) == rank
    for group in (*groups, third):
        group.shutdown()


def check_current(groups: list[Any]) -> None:
    assert _dist2.current_process_group() is None
    seen: list[Any] = []
    with _dist2.process_group(groups[0]):
        with _dist2.process_group(groups[1]):
            assert _dist2.current_process_group() is groups[1]
        thread = threading.Thread(target=lambda: seen.append(_dist2.current_process_group()))
        thread.start()
        thread.join()
        assert _dist2.current_process_group() is groups[0] and seen == [None]
    assert _dist2.current_process_group() is None


def test_on_three_ranks() -> None:
    arraycomm.spawn(check_unregistered, nprocs=RANKS, start_method="forkserver")


def test_factories(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    from arraycomm.distributed.process_groups.world import state

    monkeypatch.setattr(state, "factories", {})
    monkeypatch.setattr(state, "shared", None)
    _dist2.register_backend("mine", lambda *given, **named: (given[1:], named))
    assert _dist2.new_group("mine", LIMIT, "cpu", colour=3) == ((0, 1, LIMIT, "cpu"), {"colour": 3})
    for name in ("mine", "gloo"):
        with pytest.raises(ValueError, match="already registered"):
            _dist2.register_backend(name, lambda *given, **named: None)
    with pytest.raises(ValueError, match="Backend foo not registered; registered are gloo, .*mine"):
        _dist2.new_group("foo", LIMIT, "cpu")
    with pytest.raises(TypeError, match="takes no colour"):
        _dist2.new_group("gloo", LIMIT, "cpu", colour=3)
    with pytest.raises(TypeError, match="timedelta"):
        _dist2.new_group("gloo", 3, "cpu")  # type: ignore[arg-type]

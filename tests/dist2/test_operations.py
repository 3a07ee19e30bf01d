"""Every documented form of every operation, on two and four ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arraycomm.distributed as dist
from arraycomm import CollectiveMismatch, dist2

from .groups import LIMIT, on_ranks

SIZES = (2, 4)


Call = Callable[[Any], Any]


def _options(kind: Any, **fields: Any) -> Any:
    made = kind()
    for name, value in {"timeout": LIMIT, **fields}.items():
        setattr(made, name, value)
    return made


def _empty(count: int, length: int = 1) -> list[Any]:
    return [np.full(length, -1.0) for _ in range(count)]


def _strided() -> Any:
    return np.zeros(4)[::2]


def _locked() -> Any:
    x = np.zeros(1)
    x.flags.writeable = False
    return x


def _values(arrays: Any) -> list[list[float]]:
    return [x.tolist() for x in arrays]


MAX = dist2.ReduceOp.MAX


def check_allreduce(group: Any, rank: int, size: int) -> None:
    biggest = _options(dist2.AllreduceOptions, reduceOp=MAX)
    call: Call
    for call, expected in (
        (lambda x: group.allreduce([x]), sum(range(size))),
        (lambda x: group.allreduce([x], biggest), size - 1),
        (lambda x: group.allreduce(tensors=[x], opts=biggest), size - 1),
        (lambda x: group.allreduce([x], MAX), size - 1),
        (lambda x: group.allreduce([x], MAX, LIMIT), size - 1),
        (lambda x: group.allreduce(tensors=[x], op=MAX, timeout=LIMIT), size - 1),
        (lambda x: group.allreduce(x), sum(range(size))),
        (lambda x: group.allreduce(tensor=x, op=MAX), size - 1),
        (lambda x: group.allreduce(x, timeout=LIMIT), sum(range(size))),
    ):
        work = call(x := np.array([float(rank)]))
        assert isinstance(work, dist2.Work) and work.wait() and x.tolist() == [expected]


def check_broadcast(group: Any, rank: int, size: int) -> None:
    call: Call
    for call in (lambda x: group.broadcast([x], _options(dist2.BroadcastOptions, rootRank=1)),
                 lambda x: group.broadcast(x, 1), lambda x: group.broadcast(tensor=x, root=1, timeout=LIMIT)):
        call(x := np.array([rank])).wait()
        assert x.tolist() == [1]
    group.broadcast([x := np.array([rank + 5])]).wait()
    assert x.tolist() == [5]


def check_reduce(group: Any, rank: int, size: int) -> None:
    call: Call
    for call in (lambda x: group.reduce([x], _options(dist2.ReduceOptions, rootRank=1, reduceOp=MAX)),
                 lambda x: group.reduce(x, 1, MAX), lambda x: group.reduce(tensor=x, root=1, op=MAX, timeout=LIMIT)):
        call(x := np.array([rank])).wait()
        assert rank != 1 or x.tolist() == [size - 1]


def check_allgather(group: Any, rank: int, size: int) -> None:
    x, every = np.array([float(rank)]), [[float(r)] for r in range(size)]
    call: Call
    for call in (lambda out: group.allgather([out], [x]), lambda out: group.allgather([out], [x], dist2.AllgatherOptions()),
                 lambda out: group.allgather(out, x),
                 lambda out: group.allgather(output_tensors=out, input_tensor=x, timeout=LIMIT)):
        call(out := _empty(size)).wait()
        assert _values(out) == every
    group.all_gather_single(y := np.zeros(size), x).wait()
    assert y.tolist() == [float(r) for r in range(size)]
    lists = [_empty(2) for _ in range(size)]
    group.allgather_coalesced(lists, [x, x + 10], dist2.AllgatherOptions()).wait()
    assert [_values(got) for got in lists] == [[[r], [r + 10]] for r in range(size)]
    for many in (group.all_gather_single_coalesced, group.allgather_into_tensor_coalesced):
        many(ys := [np.zeros(size), np.zeros(size)], [x, -x], opts=dist2.AllgatherOptions()).wait()
        assert _values(ys) == [[r for r in range(size)], [-r for r in range(size)]]


def check_gather_scatter(group: Any, rank: int, size: int) -> None:
    x, every = np.array([float(rank)]), [[float(r)] for r in range(size)]
    second = _options(dist2.GatherOptions, rootRank=1)
    call: Call
    for call in (lambda out: group.gather([out] if rank == 1 else [], [x], second),
                 lambda out: group.gather(out if rank == 1 else [], x, 1),
                 lambda out: group.gather(output_tensors=out if rank == 1 else [], input_tensor=x, root=1, timeout=LIMIT)):
        call(out := _empty(size)).wait()
        assert rank != 1 or _values(out) == every
    parts = [np.array([10.0 * r]) for r in range(size)]
    for call in (lambda y: group.scatter([y], [parts] if rank == 1 else [], _options(dist2.ScatterOptions, rootRank=1)),
                 lambda y: group.scatter(y, parts if rank == 1 else [], 1),
                 lambda y: group.scatter(output_tensor=y, input_tensors=parts if rank == 1 else [], root=1)):
        call(y := np.zeros(1)).wait()
        assert y.tolist() == [10.0 * rank]


def check_reduce_scatter(group: Any, rank: int, size: int) -> None:
    parts = [np.array([float(r + rank)]) for r in range(size)]
    summed, largest = size * rank + sum(range(size)), rank + size - 1
    most = _options(dist2.ReduceScatterOptions, reduceOp=MAX)
    call: Call
    for call, expected in ((lambda y: group.reduce_scatter([y], [parts]), summed),
                           (lambda y: group.reduce_scatter([y], [parts], most), largest),
                           (lambda y: group.reduce_scatter(y, parts, MAX), largest),
                           (lambda y: group.reduce_scatter(output=y, input=parts, timeout=LIMIT), summed),
                           (lambda y: group.reduce_scatter_single(y, np.concatenate(parts)), summed),
                           (lambda y: group.reduce_scatter_single(outputTensor=y, inputTensor=np.concatenate(parts), opts=most),
                            largest)):
        call(y := np.zeros(1)).wait()
        assert y.tolist() == [expected]
    for many in (group.reduce_scatter_single_coalesced, group.reduce_scatter_tensor_coalesced):
        many(ys := [np.zeros(1), np.zeros(1)], [np.concatenate(parts), -np.concatenate(parts)], most).wait()
        assert _values(ys) == [[largest], [-rank]]


def check_alltoall(group: Any, rank: int, size: int) -> None:
    gives, gets = [100.0 * rank + r for r in range(size)], [100.0 * r + rank for r in range(size)]
    group.alltoall(out := _empty(size), [np.array([v]) for v in gives], dist2.AllToAllOptions()).wait()
    assert _values(out) == [[v] for v in gets]
    ones = [1] * size
    for call in (group.all_to_all_single, group.alltoall_base):
        for rest in ((ones, ones), ([], []), (ones, ones, dist2.AllToAllOptions()), (ones, ones, LIMIT)):
            call(y := np.zeros(size), np.array(gives), *rest).wait()
            assert y.tolist() == gets
    sends = [rank + 1] * size  # rank r gives everybody r + 1 rows
    group.all_to_all_single(y := np.zeros(sum(range(1, size + 1))), np.full(size * (rank + 1), float(rank)),
                            [r + 1 for r in range(size)], sends, timeout=LIMIT).wait()
    assert y.tolist() == [float(r) for r in range(size) for _ in range(r + 1)]


def check_messages(group: Any, rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    works = [group.send([np.array([rank])], right, 7), group.recv([x := np.zeros(1, int)], left, 7)]
    assert all(work.wait() for work in works) and x.tolist() == [left] and works[1].source_rank() == left
    works = [group.send(tensors=[np.array([rank])], dstRank=right, tag=8), group.recv_anysource([x := np.zeros(1, int)], 8)]
    assert all(work.wait() for work in works) and x.tolist() == [left]


def check_barriers(group: Any, rank: int, size: int) -> None:
    for work in (group.barrier(), group.barrier(_options(dist2.BarrierOptions)), group.barrier(opts=dist2.BarrierOptions()),
                 group.barrier(LIMIT), group.barrier(timeout=LIMIT)):
        assert work.wait()
    assert group.monitored_barrier() is None and group.monitored_barrier(LIMIT, wait_all_ranks=True) is None


def check_coalesced_allreduce(group: Any, rank: int, size: int) -> None:
    group.allreduce_coalesced(xs := [np.array([rank]), np.array([rank, -rank])]).wait()
    assert _values(xs) == [[sum(range(size))], [sum(range(size)), -sum(range(size))]]
    group.allreduce_coalesced(xs := [np.array([rank])], _options(dist2.AllreduceCoalescedOptions, reduceOp=MAX)).wait()
    assert _values(xs) == [[size - 1]]


def check_arrays_that_share_memory_are_reduced_once(group: Any, rank: int, size: int) -> None:
    """However long they are: each as it was before, as torch's gloo does it."""
    for count in (4, 1 << 15):
        for async_ops in (False, True):
            x, other = np.ones(count), np.ones(count)
            with dist._coalescing_manager(group, async_ops=async_ops) as manager:
                for one in (x, other, x, x[1:], x[:0]):
                    dist.all_reduce(one, group=group)
            manager.wait()
            assert set(x) == set(other) == {size}
        group.allreduce_coalesced([x, x]).wait()
        assert set(x) == {size * size}


def check_lists_of_several(group: Any, rank: int, size: int) -> None:
    """Each array is an operation of its own: they may differ in shape and dtype, share no memory, and be strided."""
    total, every = sum(range(size)), list(range(size))
    xs = [np.array([float(rank)]), np.full((2, 2), rank), np.zeros(0, np.int8), np.full((2, 3), rank, np.float32)[:, ::2]]
    work = group.allreduce(xs, timeout=LIMIT)
    assert all(one is x for one, x in zip(work.result(), xs, strict=True)) and work.is_completed() and work.is_success()
    assert [set(x.ravel().tolist()) for x in xs] == [{total}, {total}, set(), {total}]
    group.allreduce(xs[:2], _options(dist2.AllreduceOptions, reduceOp=MAX)).wait()
    group.broadcast(told := [np.array([rank]), np.array([rank, 2.5])], _options(dist2.BroadcastOptions, rootRank=1)).wait()
    assert _values(told) == [[1], [1, 2.5]]
    group.reduce(pair := (np.array([rank]), np.array([rank] * 2)), _options(dist2.ReduceOptions, rootRank=1)).wait()
    assert rank != 1 or _values(pair) == [[total], [total] * 2]
    group.allgather(out := [_empty(size), _empty(size, 2)], [np.array([float(rank)]), np.full(2, rank + 0.5)]).wait()
    assert [_values(ys) for ys in out] == [[[r] for r in every], [[r + 0.5] * 2 for r in every]]
    group.gather(out if rank == 0 else [], [np.array([-1.0 * rank]), np.full(2, 2.0 * rank)], dist2.GatherOptions()).wait()
    assert rank or [_values(ys) for ys in out] == [[[-r] for r in every], [[2 * r] * 2 for r in every]]
    parts = [[np.full(n, 10.0 * n + r) for r in every] for n in (1, 2)]
    group.scatter(ys := [np.zeros(1), np.zeros(2)], parts if rank == 0 else [], dist2.ScatterOptions()).wait()
    assert _values(ys) == [[10 + rank], [20 + rank] * 2]
    group.reduce_scatter(ys, parts).wait()
    assert _values(ys) == [[size * (10 + rank)], [size * (20 + rank)] * 2]
    right, left = (rank + 1) % size, (rank - 1) % size
    works = [group.send([np.full(1, rank + 1.0), np.full(2, rank + 2.0)], right, 3), group.recv(ys, left, 3)]
    assert all(work.wait() for work in works) and _values(ys) == [[left + 1], [left + 2] * 2]
    with dist._coalescing_manager(group) as manager:
        group.allreduce(xs := [np.ones(1), np.ones(2)])
    manager.wait()
    assert _values(xs) == [[size], [size] * 2]


def check_what_a_manager_holds_back_is_done_in_its_order(group: Any, rank: int, size: int) -> None:
    """Where one reads what another has written, however long that is."""
    for count in (4, 1 << 15):
        for async_ops in (False, True):
            x, y = np.full(count, rank + 1.0), np.ones(count)
            with dist._coalescing_manager(group, async_ops=async_ops) as manager:
                for op in (MAX, dist.ReduceOp.SUM):
                    dist.all_reduce(x, op, group=group)
                    dist.all_reduce(y, op, group=group)
                dist.all_gather_single(whole := np.zeros(size * count), x, group=group)
            manager.wait()
            assert set(x) == set(whole) == {size * size} and set(y) == {size}


def check_what_a_manager_holds_back_runs_once(group: Any, rank: int, size: int) -> None:
    """Calls with a timeout of their own, which are made on a copy of the group, run or add to what was held back before."""
    for async_ops in (False, True):
        x, y, big, ys = np.ones(2), np.ones(3), np.ones(1 << 14), [np.zeros(1), np.zeros(1)]
        with dist._coalescing_manager(group, async_ops=async_ops) as manager:
            dist.all_reduce(x, group=group)
            group.allreduce(big, timeout=LIMIT)
            group.broadcast(told := np.array([rank]), 1, timeout=LIMIT).wait()
            assert x.tolist() == [size] * 2 and told.tolist() == [1]
            group.allreduce(y, timeout=LIMIT)
            group.reduce_scatter_single_coalesced(ys, [np.ones(size), -np.ones(size)], _options(dist2.ReduceScatterOptions))
        manager.wait()
        assert x.tolist() == [size] * 2 and y.tolist() == [size] * 3 and _values(ys) == [[size], [-size]]
        assert set(big) == {size}


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_forms(check: Callable[[Any, int, int], None], size: int) -> None:
    on_ranks(size, lambda group: check(group, group.rank(), group.size()))


WRONG: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda g: g.allreduce(np.zeros(1), timeout=3), TypeError, r"(?s)allreduce\(\): incompatible .*int\).*timeout: timedelta"),
    (lambda g: g.allreduce(np.zeros(1), dist2.BroadcastOptions()), TypeError, "BroadcastOptions"),
    (lambda g: g.allreduce(), TypeError, "incompatible"),
    (lambda g: g.allreduce(np.zeros(1), tensors=[np.zeros(1)]), TypeError, "incompatible"),
    (lambda g: g.allreduce(tensor=np.zeros(1), opts=dist2.AllreduceOptions()), TypeError, "incompatible"),
    (lambda g: g.allreduce(np.zeros(1), colour=1), TypeError, "colour: int"),
    (lambda g: g.allreduce([]), ValueError, "all_reduce needs at least one array, got an empty list"),
    (lambda g: g.send([], 1, 0), ValueError, "isend needs at least one array, got an empty list"),
    (lambda g: g.allgather([_empty(2)], [np.zeros(1)] * 2), ValueError, "as many outputs as inputs are needed, got 1 and 2"),
    (lambda g: g.allreduce([np.zeros(1), "x"]), TypeError, "tensor"),
    (lambda g: g.allreduce([_strided(), _locked()]), ValueError, "read-only"),
    (lambda g: g.allgather([_empty(2), _empty(3)], [np.zeros(1)] * 2), RuntimeError, "tensor_list"),
    (lambda g: g.reduce_scatter([np.zeros(1)] * 2, [_empty(2), _empty(3)]), RuntimeError, "input_list"),
    (lambda g: g.allreduce("x"), TypeError, "tensor"),
    (lambda g: g.allreduce(np.zeros(1), "sum"), TypeError, "op: ReduceOp"),
    (lambda g: g.broadcast(np.zeros(1), "0"), TypeError, "root: int"),
    (lambda g: g.broadcast(np.zeros(1), 5), ValueError, "Group rank 5 is not part of group"),
    (lambda g: g.all_gather_single_coalesced([np.zeros(2)], []), ValueError, "as many outputs as inputs"),
    (lambda g: g.send([np.zeros(1)], 1, -1), RuntimeError, "Tag must be nonnegative"),
    (lambda g: g.get_backend("cpux"), RuntimeError, "Expected one of cpu"),
    (lambda g: g.get_backend("xpu"), ValueError, "No backend type associated with device type xpu"),
    (lambda g: g.split_group([0], device_types=["xpu"]), ValueError, "No backend type"),
    (lambda g: g.split_group([0], device_types=[]), ValueError, "device_types is empty"),
    (lambda g: setattr(g, "use_pg_for_symm_mem_rendezvous", False), ValueError, "always agrees on symmetric arrays"),
]


def test_wrong_calls_leave_the_group_as_it_was() -> None:
    def work(group: Any) -> None:
        for call, error, text in WRONG:
            with pytest.raises(error, match=text):
                call(group)
        group.allreduce(x := np.ones(1)).wait()
        assert x.tolist() == [2]
        assert group.core._communicator.calls() == 1  # nothing of a list was begun

    on_ranks(2, work)


def test_lists_of_other_lengths() -> None:
    """Each is refused on all ranks. The group goes on where all gave lists of several."""
    def work(world: Any) -> None:
        group = world.split_group([1, 2])
        if group is None:
            return
        rank, xs = group.rank(), [np.ones(1) for _ in range(3)]
        call: Call
        for call in (lambda xs: group.allreduce(xs), lambda xs: group.allgather([_empty(2) for _ in xs], xs),
                     lambda xs: group.scatter(xs, [_empty(2) for _ in xs] if rank == 0 else [])):
            with pytest.raises(CollectiveMismatch, match="rank 0 gives a list of 2 arrays, rank 1 one of 3") as raised:
                call(xs[: 2 + rank])
            assert (raised.value.ranks, raised.value.world_ranks) == ((1,), (2,)) and xs[0].tolist() == [1]
        group.allreduce(xs).wait()
        assert _values(xs) == [[2]] * 3
        with pytest.raises(CollectiveMismatch, match="called all_(gather|reduce).* called all_"):
            group.allreduce(xs[: 1 + rank]).wait()
        assert _values(xs) == [[2]] * 3
        group.shutdown()

    on_ranks(3, work)


def test_every_operation_that_is_documented_is_called_here() -> None:
    operations = {name for name, found in vars(dist2.ProcessGroup.__mro__[1]).items() if not name.startswith("_")}
    called = Path(__file__).read_text()
    assert len(operations) > 20 and {name for name in operations if f"group.{name}" not in called} == set()

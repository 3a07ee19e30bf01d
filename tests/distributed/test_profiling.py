"""torch.profiler shows operations under torch's names, and groups are plain ones when it does not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.core.arrays.dlpack import resolve
from arraycomm.core.arrays.joined import joined, update
from arraycomm.distributed.process_groups.profiling import _tensors
from tests.present import present

torch = pytest.importorskip("torch")


@pytest.fixture
def world() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield present(dist.group.WORLD)
    dist.destroy_process_group()


def test_torch_profiler(world: dist.ProcessGroup) -> None:
    x, core = torch.ones(4), world.core
    dist.all_reduce(x)
    assert type(core) is arraycomm.Group
    with torch.profiler.profile() as profile:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather([torch.empty(4)], x)
        dist.all_gather_single(torch.empty(4), x)
        dist.barrier()
        works = [dist.isend(x, 0), dist.isend(x, 0), dist.irecv(x, 0), dist.irecv(x), dist.all_reduce(x, async_op=True)]
        with dist.record_comm("mine"):
            dist.all_reduce(x)
        for work in works:
            present(work).wait()
    found = Counter(event.name for event in profile.events() if event.name.startswith(("gloo:", "c10d::", "mine")))
    assert found == {"c10d::allreduce_": 3, "gloo:all_reduce": 2, "mine": 1, "c10d::broadcast_": 1, "gloo:broadcast": 1,
                     "c10d::allgather_": 1, "c10d::_allgather_base_": 1,
                     "gloo:all_gather": 2, "c10d::barrier": 1, "gloo:barrier": 1, "c10d::send": 2,
                     "gloo:send": 2, "c10d::recv_": 1, "gloo:recv": 1, "c10d::recv_any_source_": 1, "gloo:recvAnySource": 1}
    inner = next(event for event in profile.events() if event.name == "gloo:broadcast")
    assert inner.is_async and inner.cpu_parent is None  # of a synchronous call, too
    with torch.profiler.profile() as profile:
        dist.reduce_scatter_single(torch.empty(4), x)
        dist.reduce_scatter(torch.empty(4), [x])
        dist.all_to_all_single(torch.empty(4), x)
        dist.all_to_all([torch.empty(4)], [x])
        dist.all_reduce_coalesced([x])
        dist.all_gather_coalesced([[torch.empty(4)]], [x])
    operators = [event.name for event in profile.events() if event.name.startswith("c10d::")]
    assert operators == ["c10d::_reduce_scatter_base_", "c10d::reduce_scatter_", "c10d::alltoall_base_", "c10d::alltoall_",
                         "c10d::allreduce_coalesced_", "c10d::allgather_coalesced_"]
    dist.all_reduce(x, group=world)
    assert type(core) is arraycomm.Group


def test_asynchronous_ones_last_until_their_end_is_seen(world: dist.ProcessGroup) -> None:
    x, y = torch.ones(4), torch.empty(4)
    with torch.profiler.profile() as profile:
        received = present(dist.irecv(y, 0))
        torch.zeros(3)
        sent = present(dist.isend(x, 0))
        dist.all_reduce(x)
        received.wait()
        torch.ones(3)
        while not sent.is_completed():
            received.wait()
        late = present(dist.all_reduce(x, async_op=True))
    late.wait()  # after the profiler's end
    events = {event.name: event for event in profile.events()}
    kinds = {name: event.is_async for name, event in events.items() if name.startswith(("gloo:", "c10d:"))}
    assert {name for name, lasts in kinds.items() if lasts} - {"gloo:all_reduce"} == {"gloo:recv", "gloo:send"}
    call, whole, between, after = (events[name].time_range for name in ("c10d::recv_", "gloo:recv", "aten::zeros", "aten::ones"))
    assert whole.start < call.end < between.start < between.end < whole.end < after.start
    assert events["aten::zeros"].cpu_parent is None


def test_no_label_ends_after_its_profiler(world: dist.ProcessGroup) -> None:
    """torch would write their ends into freed memory: the process crashed in most runs of such a loop."""
    from arraycomm.distributed.process_groups.profiling import _unended

    late: list[dist.Work] = []
    x, before = torch.ones(4), len(_unended)
    for _ in range(10):
        with torch.profiler.profile() as profile:
            seen = present(dist.all_reduce(x, async_op=True))
            for work in late:  # of the profiler before this one
                work.wait()
            late = [present(dist.all_reduce(x, async_op=True)) for _ in range(20)]
            seen.wait()
        results = profile.profiler.kineto_results
        for work in late[:10]:
            work.wait()
        assert len(results.events()) and Counter(event.name for event in profile.events())["gloo:all_reduce"] == 21
    assert len(_unended) == before + 200


def test_a_label_of_another_thread_is_not_ended(world: dist.ProcessGroup) -> None:
    """That thread may stop the profiler meanwhile."""
    from arraycomm.distributed.process_groups.profiling import _unended

    before = len(_unended)
    with torch.profiler.profile(), ThreadPoolExecutor(1) as other:
        other.submit(present(dist.all_reduce(torch.ones(4), async_op=True)).wait).result()
        assert len(_unended) == before + 1
        present(dist.all_reduce(torch.ones(4), async_op=True)).wait()
    assert len(_unended) == before + 1


def one_of_each(d: Any, dtype: Any, asynchronous: bool) -> Iterator[Any]:
    """Works of one of each operation, each of which is to be waited for before the next one."""
    def one(*shape: int) -> Any:
        return torch.ones(shape or (3, 2), dtype=dtype)

    yield d.all_reduce(one(), async_op=asynchronous)
    yield d.all_reduce_coalesced([one(), one(5)], async_op=asynchronous)
    yield d.broadcast(one(2, 1), 0, async_op=asynchronous)
    yield d.all_gather([one()], one(), async_op=asynchronous)
    yield d.all_gather_into_tensor(one(4, 2), one(4, 2), async_op=asynchronous)
    yield d.scatter(one(), [one()], 0, async_op=asynchronous)
    yield d.all_to_all([one()], [one()], async_op=asynchronous)
    yield d.all_to_all_single(one(6), one(6), async_op=asynchronous)
    yield d.barrier(async_op=asynchronous)
    if not dtype.is_complex:  # which torch's gloo does not take here
        yield d.reduce(one(2, 3), 0, async_op=asynchronous)
        yield d.gather(one(), [one()], 0, async_op=asynchronous)


def profiled(d: Any, dtype: Any, asynchronous: bool) -> list[tuple[str, bool, list[list[int]]]]:
    with torch.profiler.profile(record_shapes=True) as profile:
        for work in one_of_each(d, dtype, asynchronous):
            if work is not None:
                work.wait()
    return [(event.name, event.is_async, event.input_shapes) for event in profile.events() if event.name.startswith("gloo:")]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_as_torchs_gloo(world: dist.ProcessGroup, dtype: Any, asynchronous: bool) -> None:
    import torch.distributed as theirs

    ours = profiled(dist, dtype, asynchronous)
    theirs.init_process_group("gloo", store=theirs.HashStore(), rank=0, world_size=1)
    try:
        assert ours == profiled(theirs, dtype, asynchronous)
    finally:
        theirs.destroy_process_group()


def test_tensors_of_lists() -> None:
    """Of what joins several arrays, by a copy or where they lie one after the other."""
    memory = torch.ones(10, 2)
    for xs in ([memory[:4], memory[4:8]], [memory[6:], memory[:5]], [memory]):
        for join in (joined, lambda buffers: update(buffers)[0]):
            assert [x.data_ptr() for x in _tensors(join([resolve(x) for x in xs]))] == [x.data_ptr() for x in xs]
    assert not list(_tensors(None)) and not list(_tensors(b"bytes"))
    assert [x.shape for x in _tensors(torch.ones(3, dtype=torch.complex64).conj())] == [(3, 2)]


def test_shapes_of_messages(world: dist.ProcessGroup) -> None:
    x = torch.ones(3, 4)
    with torch.profiler.profile(record_shapes=True) as profile:
        works = [dist.isend(x[0], 0), dist.irecv(torch.empty(4), 0), dist.isend(x, 0), dist.irecv(torch.empty(3, 4))]
        for work in works:
            present(work).wait()
    found = [(event.name, event.is_async, event.input_shapes) for event in profile.events() if event.name.startswith("gloo:")]
    assert sorted(found) == [("gloo:recv", True, [[4]]), ("gloo:recvAnySource", True, [[3, 4]]),
                             ("gloo:send", True, [[3, 4]]), ("gloo:send", True, [[4]])]


def test_a_group_with_a_timeout_of_its_own(world: dist.ProcessGroup) -> None:
    x = torch.ones(4)
    with torch.profiler.profile() as profile:
        world.allreduce(x, dist.ReduceOp.SUM, timedelta(seconds=3)).wait()
        world.set_timeout(timedelta(seconds=5))
        dist.all_reduce(x)
    assert Counter(event.name for event in profile.events())["gloo:all_reduce"] == 2


def test_plain_calls_are_plain_again(world: dist.ProcessGroup) -> None:
    x = torch.ones(1)
    with torch.profiler.profile(), dist._coalescing_manager():
        dist.all_reduce(x)
    dist.all_reduce(x)
    assert type(world.core) is arraycomm.Group is type(world._plain)


def test_other_groups_are_labelled_too(world: dist.ProcessGroup) -> None:
    group = dist.new_group([0])
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(1), group=group)
    assert [event.name for event in profile.events() if event.name.startswith("gloo:")] == ["gloo:all_reduce"]
    assert type(world.core) is arraycomm.Group


@pytest.mark.parametrize("other", ["absent", "without tensors"])
def test_a_torch_that_keeps_no_shapes(world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, other: str,
                                      caplog: pytest.LogCaptureFixture) -> None:
    from arraycomm.distributed.process_groups.profiling import _without_shapes

    _without_shapes.cache_clear()
    if other == "absent":
        monkeypatch.delattr(torch._C._autograd, "_record_function_with_args_enter")
    else:
        monkeypatch.setattr(torch._C._autograd, "_record_function_with_args_enter", Mock(side_effect=TypeError("incompatible")))
    x = torch.ones(3)
    with torch.profiler.profile() as profile:
        dist.all_reduce(x)
        dist.all_reduce(x)
    assert Counter(event.name for event in profile.events())["gloo:all_reduce"] == 2
    assert [record.message for record in caplog.records if "have no shapes" in record.message][1:] == [] != caplog.records


def test_a_torch_that_does_not_tell_of_starts(world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch,
                                              caplog: pytest.LogCaptureFixture) -> None:
    from arraycomm.distributed.process_groups.profiling import _runs

    with monkeypatch.context() as other:
        other.delattr(torch.autograd.profiler, "_run_on_profiler_start")
        other.setattr("arraycomm.distributed.process_groups.profiling._runs", _runs.__wrapped__)
        other.setattr(torch.autograd.profiler, "_is_profiler_enabled", True)
        present(dist.all_reduce(torch.ones(3), async_op=True)).wait()
    assert any("end with their calls" in record.message for record in caplog.records)
    dist.all_reduce(torch.ones(3))


def test_a_torch_without_the_flag(world: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is labelled, and operations go on."""
    from arraycomm.distributed.process_groups.world import NO_PROFILER, state

    monkeypatch.setattr(state, "profiler", NO_PROFILER)
    monkeypatch.delattr(torch.autograd.profiler, "_is_profiler_enabled")
    x = torch.ones(3)
    dist.all_reduce(x, group=world)
    dist.all_reduce(x)

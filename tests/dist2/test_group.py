"""Groups as objects: several worlds in one process, parts of groups, hooks, and what is current in a thread."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm import dist2
from arraycomm.core.interface.kinds import RECORDED
from arraycomm.distributed.process_groups.hooks import _NAMES
from tests.threads import at_once

from .groups import LIMIT, on_ranks, open_group


def _total(group: Any, value: float) -> float:
    group.allreduce(x := np.array([value])).wait()
    return float(x[0])


def test_several_worlds_in_one_process() -> None:
    stores = [dist2.HashStore(), dist2.HashStore()]

    def work(rank: int) -> tuple[Any, ...]:
        whole, pair = open_group(stores[0], rank, 4), open_group(stores[1], rank % 2, 2) if rank < 2 else None
        names = [group.group_name for group in (whole, pair) if group is not None]
        sums = [_total(group, rank + 1.0) for group in (whole, pair) if group is not None]
        whole.barrier().wait()
        for group in (whole, pair):
            if group is not None:
                group.shutdown()
        return names, sums

    answers = at_once(4, work)
    assert [sums for _, sums in answers] == [[10.0, 3.0], [10.0, 3.0], [10.0], [10.0]]
    assert len({name for names, _ in answers for name in names}) == 2 and not dist.is_initialized()


def test_a_world_of_one_store_opens_again() -> None:
    store = dist2.HashStore()

    def work(rank: int) -> list[float]:
        sums = []
        for turn in range(3):
            group = open_group(store, rank, 2)
            sums.append(_total(group, turn))
            group.shutdown()
        return sums

    assert at_once(2, work) == [[0.0, 2.0, 4.0]] * 2


def test_properties() -> None:
    def work(group: Any) -> None:
        assert group.name() == "gloo" and group.group_desc == "undefined" and group.bound_device_id is None
        assert isinstance(group.get_backend("cpu"), arraycomm.Group) and group.get_backend("cpu").size == 2
        assert group.use_pg_for_symm_mem_rendezvous and repr(group.BackendType.CUSTOM) == "<BackendType.CUSTOM: 6>"
        group.use_pg_for_symm_mem_rendezvous = True
        group.get_group_store().set(f"from {group.rank()}", "x")
        assert group.get_group_store().get(f"from {1 - group.rank()}") == b"x"
        group.set_timeout(LIMIT)
        assert group.core.timeout == LIMIT.total_seconds()
        assert group.unbox(group.boxed()) is group

    on_ranks(2, work)


def test_split_group() -> None:
    def work(group: Any) -> Any:
        part = group.split_group([3, 1], LIMIT, None, "odd", "two of four", ["cpu"])
        if part is None:
            return None
        assert (part.group_name, part.group_desc, part.size()) == ("odd", "two of four", 2)
        assert list(part._config.get_device_backend_map()) == ["cpu"]
        return part.rank(), _total(part, group.rank())

    assert on_ranks(4, work) == [None, (1, 4.0), None, (0, 4.0)]


def test_current_process_group_is_of_a_thread() -> None:
    one, two, seen = object(), object(), []
    assert dist2.current_process_group() is None
    with dist2.process_group(one):
        with pytest.raises(KeyError), dist2.process_group(two):
            assert dist2.current_process_group() is two
            raise KeyError
        thread = threading.Thread(target=lambda: seen.append(dist2.current_process_group()))
        thread.start()
        thread.join()
        assert dist2.current_process_group() is one and seen == [None]
    assert dist2.current_process_group() is None


def test_devices_of_new_group() -> None:
    def group(device: Any, **named: Any) -> Any:
        return dist2.new_group("gloo", LIMIT, device, store=dist2.HashStore(), rank=0, world_size=1, **named)

    assert group("cpu").bound_device_id is None and group("cuda:0").bound_device_id == "cuda:0"
    assert group("cuda").bound_device_id is None
    with pytest.raises(RuntimeError, match="Expected one of cpu"):
        group("abacus")
    with pytest.raises(ValueError, match="does not serve devices of type mps"):
        group("mps")
    with pytest.raises(TypeError, match="takes no colour; it takes init_method, store, rank and world_size"):
        group("cpu", colour=1)
    with pytest.raises(ValueError, match="timeout must be above 0"):
        dist2.new_group("gloo", timedelta(0), "cpu")
    for wrong in (None, 5):
        with pytest.raises(TypeError, match=f"datetime.timedelta, got {wrong}"):
            dist2.new_group("gloo", wrong, "cpu", store=dist2.HashStore(), rank=0, world_size=1)  # type: ignore[arg-type]


# ---- hooks ----

def test_hooks_have_a_name_for_each_operation() -> None:
    assert set(RECORDED) <= set(_NAMES)


def test_hooks_are_called_around_each_operation() -> None:
    def work(group: Any) -> None:
        seen: list[Any] = []
        group.register_pre_hook(2, lambda args: seen.append(("pre 2", args)))
        group.register_pre_hook(1, lambda args: seen.append(("pre 1", args)))
        group.register_post_hook(1, lambda args: seen.append(("post", args)))
        x, peer = np.ones(2), 1 - group.rank()
        group.allreduce(x).wait()
        assert [name for name, _ in seen] == ["pre 1", "pre 2", "post"]
        assert {args.name for _, args in seen} == {dist2.HookOpName.ALLREDUCE} and len({args.op_id for _, args in seen}) == 1
        assert seen[0][1].input_tensors[0] is x and seen[0][1].output_tensors[0] is x
        group.unregister_pre_hook(2)
        group.unregister_pre_hook(99)
        seen.clear()
        dist.all_reduce(x, group=group)
        group.allgather([np.zeros(2), np.zeros(2)], x).wait()
        works = [group.send([x], peer, 0), group.recv([np.zeros(2)], peer, 0)]
        group.barrier().wait()
        group.monitored_barrier()
        assert all(work.wait() for work in works)
        kinds = ["ALLREDUCE", "ALLGATHER", "SEND", "RECV", "BARRIER"]
        assert [(name, args.name.name) for name, args in seen] == [(at, kind) for kind in kinds for at in ("pre 1", "post")]
        group.unregister_pre_hook(1)
        group.unregister_post_hook(1)
        seen.clear()
        group.barrier().wait()
        assert not seen

    on_ranks(2, work)


def test_hooks_and_a_timeout_in_either_order() -> None:
    def work(group: Any) -> None:
        seen: list[int] = []
        group.set_timeout(LIMIT / 2)
        group.register_pre_hook(1, lambda args: seen.append(args.op_id))
        group.set_timeout(LIMIT)
        group.register_post_hook(1, lambda args: seen.append(args.op_id))
        assert _total(group, 2.0) == 4.0 and seen == [0, 0] and group.core.timeout == LIMIT.total_seconds()

    on_ranks(2, work)


def test_what_a_pre_hook_raises_stops_the_operation() -> None:
    def work(group: Any) -> None:
        def refuse(args: Any) -> None:
            if not all(np.isfinite(x).all() for x in args.input_tensors):
                raise RuntimeError("not finite")

        posts: list[Any] = []
        group.register_pre_hook(0, refuse)
        group.register_post_hook(0, posts.append)
        for x in (np.array([np.nan]), np.array([1.0])):
            if np.isnan(x[0]):
                with pytest.raises(RuntimeError, match="not finite"):
                    group.allreduce(x)
            else:
                group.allreduce(x).wait()
                assert x.tolist() == [2.0]
        assert len(posts) == 1

    on_ranks(2, work)


@pytest.mark.parametrize("wrong", [("x", print), (1, "no function")])
def test_what_is_no_hook_is_refused(wrong: Any) -> None:
    def work(group: Any) -> None:
        for register in (group.register_pre_hook, group.register_post_hook, group.register_abort_hook):
            with pytest.raises(TypeError, match="hook"):
                register(*wrong)

    on_ranks(1, work)


def test_abort_hooks_run_once_before_abort_and_when_an_operation_fails(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[tuple[str, int]] = []

    def work(group: Any) -> None:
        def fail() -> None:
            raise KeyError("of a hook")

        group.register_abort_hook(1, lambda: calls.append(("gone", group.rank())))
        group.unregister_abort_hook(1)
        group.register_abort_hook(2, fail)
        group.register_abort_hook(3, lambda: calls.append(("hook", group.rank())))
        if group.rank() == 0:
            group.abort()
            group.abort()
        with pytest.raises(arraycomm.Aborted):
            group.allreduce(np.ones(1)).wait()
        group.shutdown()

    on_ranks(2, work)
    assert sorted(calls) == [("hook", 0), ("hook", 1)] and "abort hook 2 raised KeyError" in caplog.text

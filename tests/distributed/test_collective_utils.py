"""collective_utils, record_comm and distributed_c10d: what stands beside the collectives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.core.diagnostics.watch import Call
from arraycomm.distributed import collective_utils, distributed_c10d
from arraycomm.distributed.process_groups import profiling
from tests.present import present

PRIVATE: Any = distributed_c10d  # names that are not exported, which programs use all the same


def fail() -> None:
    raise KeyError("lost")


def check(rank: int) -> None:
    dist.init_process_group("gloo")
    world = present(dist.group.WORLD)
    assert collective_utils.broadcast([1, {"a": np.arange(2)}][0] if rank else lambda: 7, pg=world) == 7
    assert collective_utils.broadcast("mine" if rank == 1 else "other", rank=1, pg=world) == "mine"
    with pytest.raises(RuntimeError, match="Rank 0 failed: stage load: exception KeyError: 'lost'") as caught:
        collective_utils.broadcast(fail, stage_name="load", pg=world)
    assert isinstance(caught.value.__cause__, KeyError) is (rank == 0)
    with pytest.raises(RuntimeError, match="Rank 1 failed$"):
        collective_utils.broadcast(None, success=False, rank=1, pg=world)
    assert collective_utils.all_gather(lambda: rank, "count", world) == [0, 1]
    with pytest.raises(RuntimeError, match="rank 1 failed: KeyError: 'lost'"):
        collective_utils.all_gather(fail if rank else 3, pg=world)
    with pytest.raises(RuntimeError, match="rank 1 is at stage 'two' and rank 0 at 'one'"):
        collective_utils.all_gather(1, "two" if rank else "one", world)
    found: list[Any] = [None, None]
    with pytest.raises(TypeError, match="index 1 is <class 'str'>, while first object type is <class 'int'>"):
        collective_utils.all_gather_object_enforce_type(world, found, "a" if rank else 1)
    collective_utils.all_gather_object_enforce_type(world, found, "a" if rank else 1, lambda x, y: True)
    assert found == [1, "a"]
    dist.destroy_process_group()


def test_two_ranks() -> None:
    arraycomm.spawn(check, nprocs=2, start_method="forkserver")


def test_alone() -> None:
    assert collective_utils.broadcast(lambda: 3) == 3 and collective_utils.all_gather("x") == ["x"]
    with pytest.raises(RuntimeError, match="'lost'"):
        collective_utils.all_gather(fail)
    with pytest.raises(AssertionError, match="no data"):
        collective_utils.broadcast(1, success=False)


def test_record_comm_names_the_label() -> None:
    with arraycomm.init() as group:
        call = Call("irecv", group, {"like": np.ones(1), "source": 0})  # type: ignore[arg-type]
        assert profiling.names(call, "gloo") == ("c10d::recv_", "gloo:recv")
        with dist.record_comm("layer 1"):
            with dist.record_comm("inner"):
                assert profiling.names(call, "gloo") == ("c10d::recv_", "inner")
            assert profiling.names(call, "gloo")[1] == "layer 1"
        assert profiling.names(call, "gloo")[1] == "gloo:recv"


def test_the_module_has_the_packages_names() -> None:
    assert all(getattr(distributed_c10d, name) is getattr(dist, name) for name in dist.__all__)
    with pytest.raises(ValueError, match="has not been initialized"):
        PRIVATE._get_default_group()


def test_private_names_that_programs_use() -> None:
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    try:
        world = present(dist.group.WORLD)
        assert PRIVATE._resolve_process_group(PRIVATE._get_process_group_name(world)) is world
        with pytest.raises(ValueError, match="no group is named 'x'; open are '0'"):
            PRIVATE._resolve_process_group("x")
        assert [PRIVATE._rank_not_in_group(group) for group in (None, world, dist.GroupMember.NON_GROUP_MEMBER)] == [
            False, False, True]
        assert PRIVATE._get_group_size(None) == PRIVATE._get_group_size(world) == 1
        with pytest.warns(FutureWarning, match="_get_global_rank"):
            assert PRIVATE._get_global_rank(world, 0) == 0
        for group in (None, world):
            PRIVATE._set_pg_timeout(timedelta(seconds=31 if group is None else 32), group)
            assert PRIVATE._group_or_default_group(group) is world
            assert world.core.timeout == (31 if group is None else 32)
        with pytest.raises(ValueError, match="does not belong"):
            PRIVATE._set_pg_timeout(timedelta(seconds=1), dist.GroupMember.NON_GROUP_MEMBER)
        assert isinstance(PRIVATE.AllgatherOptions(), PRIVATE.AllToAllOptions.__base__)
        with dist._coalescing_manager() as manager:
            assert isinstance(manager, PRIVATE._CoalescingManager)
        assert PRIVATE._all_gather_base is dist.all_gather_into_tensor
        assert PRIVATE._reduce_scatter_base is dist.reduce_scatter_tensor
    finally:
        dist.destroy_process_group()

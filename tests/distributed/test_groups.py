"""Groups of three ranks: who is in them, what they carry, what is refused, and how they end."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from tests.present import present

from ..ports import free_port

RANKS = 3
LIMIT = timedelta(seconds=60)  # for everything that waits, so that a mistake fails instead of hanging
OUTSIDE = dist.GroupMember.NON_GROUP_MEMBER


def total(group: Any) -> int:
    """The sum of 1 << global rank over the members."""
    return int(group.core.all_reduce(np.array([1 << dist.get_rank()]))[0])


def refused(error: type[BaseException], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=text):
        call()


def check_members(rank: int) -> None:
    group = dist.new_group([2, 0])
    assert (group is not OUTSIDE) == (rank != 1) and (rank != 1 or group == OUTSIDE == -100)
    assert dist.get_process_group_ranks(group) == [0, 2]
    assert dist.get_rank(group) == (0, -1, 1)[rank] and dist.get_world_size(group) == (2, -1, 2)[rank]
    if rank == 1:
        refused(ValueError, "Invalid process group specified", lambda: dist.get_backend(group))
        dist.destroy_process_group(group)
        return
    assert total(group) == 0b101
    assert (group.group_name, group.group_desc, group.rank(), group.size()) == ("1", "undefined", rank // 2, 2)
    assert group.name() == "gloo" == dist.get_backend(group) and dist.get_backend_config(group) == "cpu:gloo,cuda:gloo"
    assert dist.get_group_rank(group, 2) == 1 and dist.get_global_rank(group, 1) == 2
    assert dist.ProcessGroup.unbox(group.boxed()) is group
    refused(TypeError, r"what boxed\(\) gave", lambda: dist.ProcessGroup.unbox(group))
    refused(ValueError, "Global rank 1 is not part of group", lambda: dist.get_group_rank(group, 1))
    refused(ValueError, "Group rank 2 is not part of group", lambda: dist.get_global_rank(group, 2))
    dist.destroy_process_group(group)
    refused(ValueError, "closed", lambda: dist.destroy_process_group(group))
    refused(ValueError, "not registered", lambda: dist.get_rank(group))
    refused(arraycomm.Aborted, "closed", lambda: total(group))


def check_order(rank: int) -> None:
    group = dist.new_group([2, 0, 1], sort_ranks=False, group_desc="turned")
    assert dist.get_process_group_ranks(group) == [2, 0, 1] and group.rank() == (1, 2, 0)[rank]
    assert group.core.all_gather(np.array([rank])).tolist() == [2, 0, 1] and group.group_desc == "turned"
    assert dist.get_process_group_ranks(None) == [0, 1, 2] and dist.get_group_rank(None, 2) == 2
    again = [dist.new_group([0, 1, 2]) for _ in range(2)]
    assert [total(one) for one in [*again, dist.new_group()]] == [0b111] * 3


def check_members_alone(rank: int) -> None:
    """use_local_synchronization: nobody but the members calls, and names stay equal afterwards."""
    count = dist.get_pg_count()
    if rank != 1:
        first = dist.new_group([0, 2], use_local_synchronization=True)
        second = dist.new_group([0, 2], use_local_synchronization=True)
        assert total(first) == total(second) == 0b101 and first.group_name != second.group_name
    else:
        assert dist.new_group([0, 2], use_local_synchronization=True) is None
    assert dist.get_pg_count() == count
    both = dist.new_group([1, 2])
    assert rank == 0 or (total(both) == 0b110 and both.group_name == str(count))


def check_refusals(rank: int) -> None:
    count = dist.get_pg_count()
    for error, text, arguments in (
        (ValueError, "Rank 5 is out of range. Valid ranks are 0 to 2", {"ranks": [5]}),
        (ValueError, "Rank -1 is out of range", {"ranks": [-1]}),
        (ValueError, "must not contain duplicate", {"ranks": [0, 0]}),
        (ValueError, "less or equal to the world size", {"ranks": [0, 1, 2, 0]}),
        (ValueError, "at least one rank", {"ranks": []}),
        (TypeError, "a rank is an int", {"ranks": ["a"]}),
        (TypeError, "timedelta", {"timeout": 3}),
        (ValueError, "above 0", {"timeout": timedelta(0)}),
        (AssertionError, "Unknown backend type foo; registered are gloo", {"backend": "foo"}),
        (dist.DistBackendError, "nccl.*not available", {"backend": "nccl"}),
        (ValueError, "accelerator with an index", {"device_id": "cpu"}),
    ):
        refused(error, text, lambda arguments=arguments: dist.new_group(**arguments))  # type: ignore[misc]
    assert dist.get_pg_count() == count
    # Ranks that do not agree hear of it, all of them, and agree afterwards.
    refused((ValueError, arraycomm.PeerLost), "do not ask for the same", lambda: dist.new_group([rank]))  # type: ignore[arg-type]
    assert total(dist.new_group()) == 0b111


def check_late(rank: int) -> None:
    """Who gives up waiting for a rank and tries again meets it, though it tried once only."""
    store = dist.group.WORLD.get_group_store()  # type: ignore[union-attr]
    if rank == 0:
        refused(dist.DistStoreError, "these ranks did not join: 1, 2; every rank of group '0' has to call new_group",
                lambda: dist.new_group(timeout=timedelta(seconds=0.2)))
        store.set("late", "")
    else:
        store.wait(["late"], LIMIT)
    assert total(dist.new_group(timeout=LIMIT)) == 0b111


def check_subgroups(rank: int) -> None:
    mine, every = dist.new_subgroups(1)
    assert total(mine) == 1 << rank and [one != OUTSIDE for one in every] == [other == rank for other in range(RANKS)]
    mine, every = dist.new_subgroups(3, group_desc="all")
    assert every == [mine] and present(mine).group_desc == "all" and total(mine) == 0b111
    os.environ["LOCAL_WORLD_SIZE"] = "3"
    assert present(dist.new_subgroups()[0]).size() == 3
    del os.environ["LOCAL_WORLD_SIZE"]
    for text, call in (
        ("must be divisible by 'group_size=2'", lambda: dist.new_subgroups(2)),
        ("must not exceed the world size", lambda: dist.new_subgroups(4)),
        (r"\(0\) must be positive", lambda: dist.new_subgroups(0)),
        ("pass group_size", lambda: dist.new_subgroups()),
        ("cannot be empty", lambda: dist.new_subgroups_by_enumeration([])),
        ("has appeared in both subgroup", lambda: dist.new_subgroups_by_enumeration([[0, 1], [1]])),
    ):
        refused(ValueError, text, call)
    pair = dist.new_group([0, 2])  # in a smaller group its members alone call it; the others may
    if rank != 1:
        mine, every = dist.new_subgroups(1, group=pair)
        assert present(mine).ranks == (rank,) and total(mine) == 1 << rank and len(every) == 2 and every.count(OUTSIDE) == 1
        mine, every = dist.new_subgroups(2, group=pair)
        assert every == [mine] and present(mine).ranks == (0, 2) and total(mine) == 0b101
        refused(ValueError, "must not exceed the world size", lambda: dist.new_subgroups(3, group=pair))
    else:
        assert dist.new_subgroups(1, group=pair) == (None, [])
    one, every = dist.new_subgroups_by_enumeration([[0, 2]])
    assert (one is None and every == [OUTSIDE]) if rank == 1 else (one is every[0] and total(one) == 0b101)


def check_split(rank: int) -> None:
    outer = dist.split_group(split_ranks=[[2, 0]], group_desc="outer")
    assert (outer is None) == (rank == 1)
    if outer is not None:
        assert total(outer) == 0b101 and outer.ranks == (2, 0) and outer.group_desc == "outer"
        inner = dist.split_group(outer, [[0], [1]], timeout=LIMIT)  # ranks of the parent
        assert inner is not None and inner.ranks == (rank,) and total(inner) == 1 << rank
    only = dist.split_group(split_ranks=[[0, 1, 2]], backend="cpu:gloo")
    assert only is not None and str(only._config) == "cpu:gloo" == dist.get_backend(only) and total(only) == 0b111
    for text, arguments in (
        ("cannot be None or empty", {}),
        ("must not overlap", {"split_ranks": [[0, 1], [1, 2]]}),
        ("Rank 7 is out of range", {"split_ranks": [[0, 7]]}),
        ("empty list", {"split_ranks": [[0], []]}),
        ("has no cuda:nccl", {"split_ranks": [[0]], "backend": "cuda:nccl"}),
    ):
        refused(ValueError, text, lambda arguments=arguments: dist.split_group(**arguments))  # type: ignore[misc]


def check_concurrency(rank: int) -> None:
    """Several groups under way at once, the order of their ends being nobody's business."""
    everybody, pair = dist.new_group(), dist.new_group([0, 1])
    works = [everybody.core.all_reduce(np.full(1000, rank), async_op=True) for _ in range(3)]
    if rank < 2:
        works.append(pair.core.all_reduce(np.full(1000, rank + 1), async_op=True))
    assert total(None or dist.group.WORLD) == 0b111
    assert [int(work.result()[0]) for work in reversed(works)] == [3] * len(works)


def check_threads(rank: int) -> None:
    """A thread for each group: their operations meet the other ranks' in whatever order."""
    groups = [dist.new_group() for _ in range(2)]
    sums: list[list[int]] = [[], []]

    def work(number: int) -> None:
        for turn in range(50):
            dist.all_reduce(x := np.array([turn + rank + 100 * number]), group=groups[number])
            sums[number].append(int(x[0]))

    threads = [threading.Thread(target=work, args=(number,)) for number in (range(2) if rank else (1, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT.total_seconds())
    assert sums == [[3 * turn + 3 + 300 * number for turn in range(50)] for number in range(2)]


def check_store(rank: int) -> None:
    """Each group has its own."""
    group = dist.new_group([0, 1])
    if rank == 0:
        group.get_group_store().set("key", "of the pair")
        dist.group.WORLD.get_group_store().set("key", "of all")  # type: ignore[union-attr]
    if rank < 2:
        assert group.get_group_store().get("key") == b"of the pair" and isinstance(group.get_group_store(), dist.Store)
    assert dist.group.WORLD.get_group_store().get("key") == b"of all"  # type: ignore[union-attr]


def check_warning(rank: int) -> None:
    from arraycomm.distributed.process_groups.world import member

    group = dist.new_group([0])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = member(group, "all_reduce")
    assert (found is group) == (rank == 0) == (not told)
    assert rank == 0 or f"Running all_reduce on global rank {rank} which does not belong" in str(told[0].message)


def check_all(rank: int) -> None:
    for check in (check_members, check_order, check_members_alone, check_refusals, check_late, check_subgroups, check_split,
                  check_concurrency, check_threads, check_store, check_warning):
        dist.init_process_group("gloo", timeout=LIMIT)  # once for each: names are counted anew
        check(rank)
        assert total(dist.group.WORLD) == 0b111
        dist.destroy_process_group()
        assert not dist.is_initialized() and dist.group.WORLD is None and dist.get_pg_count() == 0


def test_groups_of_three_ranks() -> None:
    arraycomm.spawn(check_all, nprocs=RANKS, start_method="forkserver")


def check_spellings(rank: int) -> None:
    spellings = ("gloo", "cpu:gloo,cuda:socket", "socket", "cuda:gloo,cpu:gloo", "cpu:gloo")
    dist.init_process_group(spellings[rank], timeout=LIMIT)
    assert dist.get_backend() == spellings[rank]
    for turn in range(len(spellings)):
        group = dist.new_group(backend=spellings[(rank + turn) % len(spellings)], timeout=LIMIT)
        assert total(group) == 0b111
        group = dist.new_group([0, 2], backend=spellings[(rank + turn) % len(spellings)], use_local_synchronization=True)
        assert rank == 1 or total(group) == 0b101
    dist.destroy_process_group()


def test_spellings_of_one_backend_mean_the_same() -> None:
    arraycomm.spawn(check_spellings, nprocs=RANKS, start_method="forkserver")


def check_shrinking(rank: int) -> None:
    dist.init_process_group("gloo", timeout=LIMIT)
    world = dist.group.WORLD
    assert world is not None
    for error, text, arguments in (
        (TypeError, "must be a list, but got int", (3,)),
        (ValueError, "cannot be empty", ([],)),
        (ValueError, "Rank 7 is out of range", ([7],)),
        (ValueError, "must not contain duplicate", ([0, 0],)),
        (ValueError, "names all 4 ranks", ([0, 1, 2, 3],)),
        (RuntimeError, "only the remaining ranks", ([rank],)),
        (ValueError, "Invalid shrink_flags value: 7", ([0], None, 7)),
    ):
        refused(error, text, lambda arguments=arguments: dist.shrink_group(*arguments))  # type: ignore[misc]
    part = dist.new_group([0, 1, 2], timeout=LIMIT)
    if rank < 2:  # rank 2 lives, and is left out
        if rank == 0:
            part.set_timeout(timedelta(seconds=7))
        small = dist.shrink_group([2], part)
        assert small.ranks == (0, 1) and total(small) == 0b11 and dist.group.WORLD is world
        assert small.core.timeout == (LIMIT.total_seconds() if rank else 7) and small.group_desc == "undefined"
        refused(ValueError, "closed already", lambda: dist.destroy_process_group(part))  # small has its place
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(arraycomm.PeerLost):
        world.core.barrier()
    made = dist.get_pg_count()
    smaller = dist.shrink_group([1], shrink_flags=1)
    assert dist.get_pg_count() == made + 1 and smaller.group_name != world.group_name  # no name twice
    assert dist.group.WORLD is smaller and (dist.get_rank(), dist.get_world_size()) == ({0: 0, 2: 1, 3: 2}[rank], 3)
    assert total(smaller) == 0b111 and dist.get_process_group_ranks(None) == [0, 1, 2]
    assert rank == 3 or part.closed
    last = dist.new_group([0, 2])
    assert dist.get_rank() == 1 or total(last) == 0b101
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(arraycomm.PeerLost, match="rank 2") as caught:
        dist.new_group(timeout=LIMIT)
    assert (caught.value.ranks, caught.value.world_ranks) == ((2,), (3,))
    dist.destroy_process_group()
    assert not dist.is_initialized()


def check_shrinking_again(rank: int) -> None:
    """Whoever died is left out, named or not; one that lives and is named, too."""
    dist.init_process_group("gloo", timeout=LIMIT)
    assert total(dist.group.WORLD) == 0b11111
    if rank in (1, 2):
        os.kill(os.getpid(), signal.SIGKILL)
    if rank != 4:
        smaller = dist.shrink_group([1, 4])
        assert smaller.ranks == (0, 1) and total(smaller) == 0b11 and dist.group.WORLD is smaller
    dist.destroy_process_group()


def check_shrinking_without_a_store(rank: int, size: int, address: str) -> None:
    """Rank 0, which serves it, is the first that dies; then one more."""
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=LIMIT)
    dist.barrier()
    for left in range(size - 1, 0, -1):
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        world = dist.shrink_group([0], shrink_flags=left % 2)
        assert total(world) == (1 << left) - 1 and world is dist.group.WORLD
        if left > 1:
            refused(arraycomm.DistStoreError, "lost the TCPStore", dist.new_group)
    dist.destroy_process_group()


@pytest.mark.parametrize("check, size, killed", [(check_shrinking, 4, (1, 3)), (check_shrinking_again, 5, (1, 2)),
                                                 (check_shrinking_without_a_store, 3, (0, 1))])
def test_going_on_without_ranks_that_were_killed(check: Callable[..., None], size: int, killed: tuple[int, ...]) -> None:
    arguments = (size, f"tcp://127.0.0.1:{free_port()}") if check is check_shrinking_without_a_store else ()
    context = arraycomm.spawn(check, arguments, nprocs=size, join=False,
                               start_method="forkserver")
    try:
        end = time.monotonic() + LIMIT.total_seconds()
        for process in context.processes:
            process.join(max(0.0, end - time.monotonic()))
        assert [process.exitcode for process in context.processes] == [-signal.SIGKILL * (rank in killed) for rank in range(size)]
    finally:
        context.close()

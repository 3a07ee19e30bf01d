"""Groups whose members change: merged with groups of other worlds, and reconfigured."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm import dist2
from tests.threads import at_once

from .groups import LIMIT, on_ranks, open_group


def _ranks(group: Any, value: int) -> list[int]:
    """Every rank's value, in rank order."""
    group.all_gather_single(y := np.zeros(group.size(), int), np.array([value])).wait()
    values: list[int] = y.tolist()
    return values


def _options(uuid: int, handles: Any, timeout: timedelta = LIMIT) -> dist2.ReconfigureOptions:
    return dist2.ReconfigureOptions(uuid, handles, timeout)


def _handles(group: Any, store: Any, key: str, who: int, size: int) -> list[str]:
    store.set(f"{key}/{who}", group.get_reconfigure_handle())
    return [store.get(f"{key}/{other}").decode() for other in range(size)]


# ---- merging ----

def test_groups_of_several_worlds_are_merged() -> None:
    worlds, common = [dist2.HashStore(), dist2.HashStore()], dist2.HashStore()

    def work(number: int) -> tuple[Any, ...]:
        world, rank = (0, number) if number < 3 else (1, number - 3)  # of three ranks and of two
        group = open_group(worlds[world], rank, (3, 2)[world])
        found = []
        for turn in range(2):  # the same store again
            merged = group.merge_remote_group(common, 5, LIMIT, f"all {turn}", "of two worlds")
            found.append((merged.size(), tuple(_ranks(merged, number)), merged.group_name, merged.group_desc))
            merged.shutdown()
        group.barrier().wait()
        group.shutdown()
        return tuple(found)

    answers = at_once(5, work)
    assert len(set(answers)) == 1
    for turn, (size, order, name, desc) in enumerate(answers[0]):
        assert (size, name, desc) == (5, f"all {turn}", "of two worlds") and order in ((0, 1, 2, 3, 4), (3, 4, 0, 1, 2))


def test_a_merge_that_failed_can_be_tried_again() -> None:
    """One group waits in vain; then both come, the other one first."""
    worlds, common = [dist2.HashStore(), dist2.HashStore()], dist2.HashStore()
    failed = threading.Barrier(2, timeout=30)

    def work(world: int) -> tuple[int, int]:
        group = open_group(worlds[world], 0, 1)
        if world == 0:
            with pytest.raises(arraycomm.DistStoreError):
                group.merge_remote_group(common, 2, timedelta(seconds=0.3))
        failed.wait()
        if world == 0:
            common.wait(["other has come"], timedelta(seconds=30))
        else:
            common.set("other has come", "")
        merged = group.merge_remote_group(common, 2, LIMIT)
        found = merged.rank(), merged.size()
        merged.allreduce(np.ones(1)).wait()
        merged.shutdown()
        group.shutdown()
        return found

    assert sorted(at_once(2, work)) == [(0, 2), (1, 2)]


class Noticing(dist2.HashStore):
    """Another store's data; lets a test know and say when a group takes its place in a round."""

    def __init__(self, data: dist2.HashStore) -> None:
        self.__dict__.update(data.__dict__)
        self.came, self.go_on = threading.Event(), threading.Event()

    def add(self, key: str, amount: int) -> int:
        if amount and key.endswith("/ranks"):
            self.came.set()
            assert self.go_on.wait(30)
        return super().add(key, amount)


def _merge(store: Any, size: int, timeout: timedelta = LIMIT) -> int:
    """By a group of one rank."""
    group = open_group(dist2.HashStore(), 0, 1)
    try:
        merged = group.merge_remote_group(store, size, timeout)
        ranks = len(_ranks(merged, 0))
        merged.shutdown()
        return ranks
    finally:
        group.shutdown()


def test_who_comes_to_a_round_that_another_gives_up_goes_on_to_the_next() -> None:
    """It has read the round's number when the other one gives up."""
    common = dist2.HashStore()
    late = Noticing(common)

    def work(who: int) -> int:
        if who == 1:
            return _merge(late, 2)
        assert late.came.wait(30)
        with pytest.raises(arraycomm.DistStoreError, match="1 of 2 ranks have joined in time"):
            _merge(common, 2, timedelta(seconds=0.3))
        late.go_on.set()
        return _merge(common, 2)

    assert at_once(2, work) == [2, 2]


def test_who_waits_when_another_gives_up_meets_those_who_come_later() -> None:
    common, failed = Noticing(dist2.HashStore()), threading.Event()
    common.go_on.set()

    def work(who: int) -> int:
        if who == 0:
            return _merge(common, 3)
        assert common.came.wait(30)
        if who == 1:
            with pytest.raises(arraycomm.DistStoreError, match="of 3 ranks have joined in time"):
                _merge(common, 3, timedelta(seconds=0.3))
            failed.set()
        assert failed.wait(30)
        return _merge(common, 3)

    assert at_once(3, work) == [3, 3, 3]


def test_a_group_that_finds_too_little_room_leaves_it_to_others() -> None:
    common, refused = Noticing(dist2.HashStore()), threading.Event()
    common.go_on.set()
    world = dist2.HashStore()

    def work(number: int) -> int:
        if number == 0:
            return _merge(common, 2)
        if number == 3:
            assert refused.wait(30)
            return _merge(common, 2)
        assert common.came.wait(30)
        pair = open_group(world, number - 1, 2)
        with pytest.raises(ValueError, match="size is 2, but 1 ranks of other groups and 2 of this one have joined"):
            pair.merge_remote_group(common, 2, LIMIT)
        refused.set()
        pair.shutdown()
        return 2

    assert at_once(4, work) == [2] * 4


def test_a_size_that_cannot_be_is_refused() -> None:
    def work(group: Any) -> None:
        with pytest.raises(ValueError, match="this group alone has 2 ranks"):
            group.merge_remote_group(dist2.HashStore(), 1)
        with pytest.raises(TypeError, match="timedelta"):
            group.merge_remote_group(dist2.HashStore(), 2, 3)
        with pytest.raises(TypeError, match="store is a Store in which all these ranks meet, got str"):
            group.merge_remote_group("x", 4)

    on_ranks(2, work)


# ---- reconfiguring ----

def test_ranks_leave_and_come_back() -> None:
    store = dist2.HashStore()

    def work(group: Any) -> list[Any]:
        me = group.rank()
        found: list[Any] = []
        first = _handles(group, store, "first", me, 4)
        if me != 1:
            group.reconfigure(_options(1, [first[r] for r in (3, 0, 2)])).wait()
            found.append((group.rank(), group.size(), _ranks(group, me)))
        again = _handles(group, store, "again", me, 4)
        assert again == first
        group.reconfigure(_options(2, set(again))).wait()
        found.append((group.size(), sorted(_ranks(group, me))))
        return found

    answers = on_ranks(4, work)
    whole = (4, [0, 1, 2, 3])
    assert answers == [[(1, 3, [3, 0, 2]), whole], [whole], [(2, 3, [3, 0, 2]), whole], [(0, 3, [3, 0, 2]), whole]]


def test_a_newcomer_joins_a_running_world() -> None:
    store = dist2.HashStore()

    def work(number: int) -> list[int]:
        if number < 2:
            group = open_group(store, number, 2)
            assert _ranks(group, number) == [0, 1]
            old = group.new_window(np.zeros(2))
        else:
            group = dist2.new_group("gloo", LIMIT, "cpu", store=store, enable_reconfigure=True)
            assert (group.rank(), group.size()) == (-1, 0)
            with pytest.raises(RuntimeError, match=r"no members yet: call reconfigure\(\)"):
                group.barrier()
            with pytest.raises(ValueError, match=r"no members yet: call reconfigure\(\)"):
                group.split_group([0])
            with pytest.raises(ValueError, match=r"no members yet: call reconfigure\(\)"):
                group.recv([np.zeros(1)], 0, 0)
            group.set_timeout(LIMIT / 2)
        calls: list[Any] = []
        group.register_pre_hook(0, calls.append)
        group.reconfigure(_options(1, _handles(group, store, "all", number, 3))).wait()
        found = _ranks(group, number)
        assert len(calls) == 1 and group.core.timeout == (LIMIT / (1 if number < 2 else 2)).total_seconds()
        if number < 2:  # it ended with the former members
            with pytest.raises(arraycomm.GroupError):
                old.put(np.zeros(2), 0)
        window = group.new_window(mine := np.zeros(1))
        window.accumulate(np.ones(1), 0)
        window.fence()
        assert mine[0] == (3 if group.rank() == 0 else 0)
        window.tensor_deregister()
        group.barrier().wait()
        group.shutdown()
        return found

    assert at_once(3, work) == [[0, 1, 2]] * 3


def test_after_an_abort_a_group_is_reconfigured() -> None:
    store = dist2.HashStore()

    def work(group: Any) -> list[int]:
        me, failures = group.rank(), []
        group.register_abort_hook(0, lambda: failures.append(me))
        if me == 0:
            group.abort()
        with pytest.raises(arraycomm.Aborted):
            group.allreduce(np.ones(1)).wait()
        group.reconfigure(_options(7, _handles(group, store, "x", me, 2))).wait()
        assert failures == [me]
        return _ranks(group, me)

    assert on_ranks(2, work) == [[0, 1]] * 2


def _default_group(rank: int) -> None:
    dist.init_process_group("gloo", timeout=LIMIT)
    world: Any = dist.group.WORLD
    part = dist.new_group([0, 1])
    store = dist.PrefixStore("handles", world._meeting.store)
    handles = _handles(world, store, "x", rank, 3)
    world.reconfigure(_options(1, handles[::-1])).wait()
    assert dist.group.WORLD is world and dist.get_rank() == 2 - rank and _ranks(world, rank) == [2, 1, 0]
    assert part == dist.GroupMember.NON_GROUP_MEMBER or part.closed
    dist.all_reduce(x := np.array([rank]))
    pair = dist.new_group([0, 2])
    assert x.tolist() == [3] and (rank == 1) == (pair == dist.GroupMember.NON_GROUP_MEMBER)
    if rank != 1:
        dist.all_reduce(x, group=pair)
        assert x.tolist() == [6]
    dist.barrier()
    dist.destroy_process_group()


def test_the_default_group_is_reconfigured() -> None:
    arraycomm.spawn(_default_group, nprocs=3)


def test_wrong_options_leave_the_group_as_it_was() -> None:
    def work(group: Any) -> None:
        mine = group.get_reconfigure_handle()
        for opts, error, text in ((None, TypeError, "takes ReconfigureOptions"), (_options(1, [5]), TypeError, "handles are str"),
                                  (_options("1", [mine]), TypeError, "uuid is an int"),  # type: ignore[arg-type]
                                  (_options(1, [mine], 3), TypeError, "timeout is"),  # type: ignore[arg-type]
                                  (_options(1, [mine, mine]), ValueError, "appears once"),
                                  (_options(1, [mine, "other"]), ValueError, "appears once"),
                                  (_options(1, []), ValueError, "not among the handles")):
            with pytest.raises(error, match=text):
                group.reconfigure(opts)
        with pytest.raises(arraycomm.DistStoreError, match="did not join"):
            group.reconfigure(_options(1, [mine, "arraycomm:nobody"], timedelta(seconds=0.2)))
        with pytest.raises(RuntimeError, match="uuid 1 is already used"):
            group.reconfigure(_options(1, [mine]))
        assert group.supports_reconfigure and _ranks(group, 5) == [5]

    on_ranks(1, work)


def _lists(handles: list[str], given: list[list[int]], rank: int) -> list[str]:
    return [handles[other] for other in given[rank]]


@pytest.mark.parametrize("given", [
    [[0, 1], [1, 0]],  # another order
    [[0, 1, 2], [0, 1, 2], [1, 2]],  # one has not heard that another has gone, and is the first of two lists
    [[0, 2], [0, 1, 2], [0, 2]],  # the other way round: two could go on without the third
    [[0, 1], [1]],
])
def test_members_with_different_lists_are_told_so_at_once(given: list[list[int]]) -> None:
    """Not when their timeout is over. Whoever comes first; who can go on without the others may have done so."""
    store, size = dist2.HashStore(), len(given)

    def work(group: Any) -> str:
        me = group.rank()
        handles = _handles(group, store, "x", me, size)
        told = ""
        try:
            group.reconfigure(_options(3, _lists(handles, given, me), timedelta(seconds=300))).wait()
        except ValueError as error:
            told = str(error)
            mine = ", ".join(_lists(handles, given, me))
            others = [", ".join(_lists(handles, given, other)) for other in range(size) if given[other] != given[me]]
            assert "different lists of handles for uuid 3" in told and f"({handles[me]}) [{mine}]" in told
            assert any(f" [{other}];" in told for other in others)
            assert group.size() == size and group.rank() == me  # as it was
        return told

    def run(rank: int) -> str:
        group = open_group(store, rank, size)
        try:
            return work(group)
        finally:
            group.shutdown()

    told = at_once(size, run)
    met = [rank for rank in range(size) if not told[rank]]
    assert not met or all(given[rank] == met for rank in met)  # these wait for nobody else
    assert any(told)


class Claimed(dist2.HashStore):
    """Lets a test know when a list of members has been claimed for the last of three."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.done = "", threading.Event()

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        value = super().compare_set(key, expected, desired)
        if self.last and key.endswith(f"claim/{self.last}"):
            self.done.set()
        return value


def test_members_who_wait_hear_of_another_list() -> None:
    """Of one that comes when they wait."""
    store = Claimed()

    def run(rank: int) -> str:
        group = open_group(store, rank, 3)
        handles = _handles(group, store, "x", rank, 3)
        if rank == 2:
            assert store.done.wait(30)
        else:
            store.last = handles[2]
        try:
            group.reconfigure(_options(1, handles if rank < 2 else handles[1:], timedelta(seconds=300)))
        except ValueError as error:
            return str(error)
        finally:
            group.shutdown()
        return ""

    for rank, told in enumerate(at_once(3, run)):
        assert "differ from place 0 on" in told, rank


def test_a_list_is_compared_with_those_of_its_members_alone() -> None:
    """Two halves that have nobody in common may take the same uuid, as they may not know of each other."""
    store = dist2.HashStore()

    def work(group: Any) -> list[int]:
        me = group.rank()
        handles = _handles(group, store, "x", me, 4)
        group.reconfigure(_options(5, handles[:2] if me < 2 else handles[2:])).wait()
        return _ranks(group, me)

    assert on_ranks(4, work) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_backends_that_cannot_be_reconfigured() -> None:
    def work(group: Any) -> None:
        core, config = group.core, group._config
        for name, text, error in (("mpi", "mpi", "needs arraycomm's own engine"),
                                  ("socket", "cpu:gloo,cuda:nccl", "multiple backends")):
            group.core, group._config = SimpleNamespace(backend=name), dist.BackendConfig(text)
            with pytest.raises(RuntimeError, match=error):
                group.get_reconfigure_handle()
        group.core, group._config = core, config
        assert group.supports_reconfigure

    on_ranks(1, work)


def test_what_enable_reconfigure_needs() -> None:
    for named, text in (({}, "needs store="), ({"store": dist2.HashStore(), "rank": 0}, "takes no rank")):
        with pytest.raises(TypeError, match=text):
            dist2.new_group("gloo", LIMIT, "cpu", enable_reconfigure=True, **named)

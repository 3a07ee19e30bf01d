"""Tasks: groups of subsets."""

from __future__ import annotations

import os
import threading
from functools import partial
from unittest import mock

import numpy as np

import arraycomm

from .worlds import Context


def subsets(context: Context) -> None:
    """Odd and even ranks, each a group of its own, both working at once."""
    group, me, size = context.group, context.rank, context.size
    half = group.split(me % 2)
    assert half is not None
    members = [rank for rank in range(size) if rank % 2 == me % 2]
    context.check((half.rank, half.size) == (members.index(me), len(members)), f"{half!r} of {members}")
    context.check(half.all_gather(np.array([me])).tolist() == members, "members")
    context.check(half.all_reduce(np.ones(1000)).tolist() == [len(members)] * 1000, "all_reduce of a half")
    context.check(group.all_reduce(np.ones(3)).tolist() == [size] * 3, "the whole group goes on")
    if half.size > 1:
        quarter = half.split(half.rank % 2)
        assert quarter is not None
        context.check(quarter.all_gather(np.array([me])).tolist() == members[half.rank % 2 :: 2], "a part of a part")
        quarter.close()
    half.close()
    context.check(group.all_reduce(np.ones(3)).tolist() == [size] * 3, "the whole group goes on after close")


def outsiders_and_keys(context: Context) -> None:
    """color None stays outside; key orders the ranks."""
    group, me, size = context.group, context.rank, context.size
    backwards = group.split(7, key=-me)
    assert backwards is not None
    context.check(backwards.rank == size - 1 - me, "keys order the ranks")
    context.check(backwards.all_gather(np.array([me])).tolist() == list(range(size))[::-1], "in key order")
    context.check(backwards.broadcast(np.array([me]), 0).tolist() == [size - 1], "rank 0 is the last of the world")
    inside = group.split(None if me == size - 1 else 1, name="without the last")
    context.check((inside is None) == (me == size - 1), "None for outsiders")
    if inside is not None:
        context.check(inside.name.endswith(".without the last") and inside.size == size - 1, repr(inside))
        context.check(inside.all_reduce(np.ones(2)).tolist() == [size - 1] * 2, "without the last")
        inside.close()
    backwards.close()


def closed(context: Context) -> None:
    """A closed group refuses, says so, and may be closed again."""
    twin = context.group.split(0)
    assert twin is not None
    twin.all_reduce(np.ones(2))
    context.group.barrier()
    twin.close()
    twin.close()
    for call in (lambda: twin.all_reduce(np.ones(2)), lambda: twin.barrier(), lambda: twin.isend(np.ones(2), 0)):
        context.raises("a closed group", RuntimeError, "close", call)
    context.check(context.group.all_reduce(np.ones(2)).tolist() == [context.size] * 2, "the parent goes on")


def many(context: Context, number: int = 40) -> None:
    """Groups are made and closed again and again; descriptors and threads stay where they were."""
    def once() -> None:
        twin = context.group.split(0)
        assert twin is not None
        twin.all_reduce(np.ones(2))
        twin.close()

    for _ in range(3):
        once()
    context.group.barrier()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(number):
        once()
    context.group.barrier()
    after = len(os.listdir("/proc/self/fd")), threading.active_count()
    # A neighbour may still be closing, but what leaks in each of so many rounds is more than that.
    context.check(after[0] - before[0] < number // 2 and after[1] <= before[1] + 1, f"(fds, threads) {before} -> {after}")


def numbers(context: Context) -> None:
    """What nobody took from a closed group is not taken for a later group's, though MPI gives the number to the next one."""
    with mock.patch.dict(os.environ, {"ARRAYCOMM_TRANSPORT": "tcp"}):  # over MPI: records are messages
        _leave_records(context)
        _leave_messages(context)


def _made(group: arraycomm.Group, color: int = 0, number: int = 1) -> list[arraycomm.Group]:
    made = [group.split(color) for _ in range(number)]
    return [one for one in made if one is not None]


def _leave_records(context: Context) -> None:
    group, me, size = context.group, context.rank, context.size
    [before] = _made(group)
    never = before.all_reduce(np.ones(3), async_op=True) if me == 0 and size > 1 else None
    if never is not None:
        context.raises("what nobody else has called", TimeoutError, "continues", partial(never.wait, 0.05))
    group.barrier()
    before.close()
    group.barrier()
    later = _made(group, int(me > 0), 4)  # the first rank of the others' is not the first rank of the one before
    for half in later:
        members = half.all_gather(np.array([me])).tolist()
        context.check(members == ([*range(1, size)] if me else [0]), f"members {members} of {half.name}")
    for half in later:
        half.close()


def _leave_messages(context: Context) -> None:
    group, me, size = context.group, context.rank, context.size
    [before] = _made(group)
    works = [before.isend(np.zeros(700), 1) for _ in range(3)] if me == 0 and size > 1 else []
    before.barrier()
    context.check(len(works) in (0, 3), "sent")
    group.barrier()  # who closes takes no more messages, and those of a rank that is still in `before` would fail its barrier
    before.close()
    group.barrier()
    later = _made(group, 0, 4)
    for i, twin in enumerate(later):
        if me == 0 and size > 1:
            twin.send(np.full(700, 5.0 + i), 1)
        if me == 1:
            got = twin.recv(0, like=np.zeros(700)).array
            context.check((got == 5.0 + i).all(), f"contents of a message in {twin.name}: {got[:3]}, want {5.0 + i}")
        twin.barrier()
    for twin in later:
        twin.close()


def facts(context: Context, size: int) -> None:
    group = context.group
    context.check(group.size == size and 0 <= group.rank < size, repr(group))
    expected = os.environ.get("ARRAYCOMM_BACKEND") or "socket"
    context.check(group.backend == expected and isinstance(group.name, str) and group.timeout > 0, repr(group))

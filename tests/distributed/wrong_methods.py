"""Calls of ProcessGroup's methods, right ones in each form and wrong ones: see wrong.py. A right one looks at its result, too."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from .wrong import PATIENCE, Case, Site

RANKS = 3
FORMS = "incompatible function arguments"
RIGHT = [0, 1, 2]


def options(s: Site, name: str, **fields: Any) -> Any:
    """Not all of torch's are names of torch.distributed."""
    made = getattr(importlib.import_module("torch._C._distributed_c10d" if s.dist.__name__.startswith("torch") else
                                           "arraycomm.dist2"), name)()
    for field, value in fields.items():
        setattr(made, field, value)
    return made


Form = Callable[..., Any]


def same(x: Any, expected: Sequence[float]) -> None:
    assert x.tolist() == expected, f"{x} instead of {expected}"


def allreduce(s: Site) -> None:
    form: Form
    g, most = s.group, s.dist.ReduceOp.MAX
    for form, expected in (
        (lambda x: g.allreduce([x]), [3, 3]), (lambda x: g.allreduce(x), [3, 3]),
        (lambda x: g.allreduce(x, timeout=PATIENCE), [3, 3]),
        (lambda x: g.allreduce([x], options(s, "AllreduceOptions", reduceOp=most)), [2, 1]),
        (lambda x: g.allreduce([x], most, PATIENCE), [2, 1]), (lambda x: g.allreduce(tensor=x, op=most), [2, 1]),
        (lambda x: g.allreduce_coalesced([x]), [3, 3]),
        (lambda x: g.allreduce_coalesced([x], options(s, "AllreduceCoalescedOptions", reduceOp=most)), [2, 1]),
    ):
        form(x := s.array([s.rank, 1])).wait()
        same(x, expected)


def from_root(s: Site) -> None:
    form: Form
    for form in (lambda x: s.group.broadcast(x, 1), lambda x: s.group.broadcast(tensor=x, root=1, timeout=PATIENCE),
                 lambda x: s.group.broadcast([x], options(s, "BroadcastOptions", rootRank=1))):
        form(x := s.array([s.rank])).wait()
        same(x, [1])
    scatter: Form
    for scatter in (lambda x, parts: s.group.scatter(x, parts, 1), lambda x, parts: s.group.scatter(
            [x], [parts] if parts else [], options(s, "ScatterOptions", rootRank=1))):
        scatter(x := s.zeros(1), [s.array([10 * r]) for r in RIGHT] if s.rank == 1 else []).wait()
        same(x, [10 * s.rank])


def gathered(s: Site) -> None:
    x, whole = s.array([s.rank]), [[0], [1], [2]]
    form: Form
    for form in (lambda out: s.group.allgather([out], [x]), lambda out: s.group.allgather(out, x),
                 lambda out: s.group.allgather(out, x, timeout=PATIENCE)):
        form(out := [s.zeros(1) for _ in RIGHT]).wait()
        assert [y.tolist() for y in out] == whole, out
    gather: Form
    for gather in (lambda out: s.group.gather(out, x, 1), lambda out: s.group.gather(
            [out] if out else [], [x], options(s, "GatherOptions", rootRank=1))):
        gather(out := [s.zeros(1) for _ in RIGHT] if s.rank == 1 else []).wait()
        assert [y.tolist() for y in out] == (whole if s.rank == 1 else []), out


def reduced(s: Site) -> None:
    parts = [s.array([r + s.rank]) for r in RIGHT]
    form: Form
    for form, expected in ((lambda y: s.group.reduce_scatter([y], [parts]), 3 * s.rank + 3),
                           (lambda y: s.group.reduce_scatter(y, parts), 3 * s.rank + 3),
                           (lambda y: s.group.reduce_scatter(y, parts, s.dist.ReduceOp.MAX, PATIENCE), s.rank + 2)):
        form(y := s.zeros(1)).wait()
        same(y, [expected])
    reduce: Form
    for reduce in (lambda x: s.group.reduce(x, 1), lambda x: s.group.reduce([x], options(s, "ReduceOptions", rootRank=1))):
        reduce(x := s.array([s.rank])).wait()
        assert s.rank != 1 or x.tolist() == [3], x


def exchanged(s: Site) -> None:
    rest: tuple[Any, ...]
    for rest in (([], []), ([1] * 3, [1] * 3, PATIENCE), ([], [], options(s, "AllToAllOptions"))):
        s.group.alltoall_base(y := s.zeros(3), s.array([10 * s.rank + r for r in RIGHT]), *rest).wait()
        same(y, [10 * r + s.rank for r in RIGHT])


def sent_round(s: Site) -> None:
    left = (s.rank - 1) % RANKS
    receive: Form
    for receive in (lambda x: s.group.recv([x], left, 4), lambda x: s.group.recv_anysource([x], 4)):
        works = [s.group.send([s.array([s.rank])], s.next, 4), receive(x := s.zeros(1))]
        for work in works:
            work.wait()
        same(x, [left])


def barriers(s: Site) -> None:
    for work in (s.group.barrier(), s.group.barrier(timeout=PATIENCE), s.group.barrier(options(s, "BarrierOptions"))):
        work.wait()
    assert s.group.monitored_barrier(PATIENCE, True) is None


CASES = [
    *(Case(f"forms of {check.__name__}", None, "", check) for check in (
        allreduce, from_root, gathered, reduced, exchanged, sent_round, barriers)),
    Case("allreduce of nothing", TypeError, FORMS, lambda s: s.group.allreduce()),
    Case("allreduce of a string", TypeError, "tensor", lambda s: s.group.allreduce("x")),
    Case("allreduce of an empty list", RuntimeError, "at least one array", lambda s: s.group.allreduce([]), ours=ValueError),
    Case("allreduce by a string", TypeError, FORMS, lambda s: s.group.allreduce(s.a, "sum")),
    Case("allreduce with others' options", TypeError, FORMS, lambda s: s.group.allreduce([s.a], options(s, "BroadcastOptions"))),
    Case("allreduce with an unknown name", TypeError, FORMS, lambda s: s.group.allreduce(s.a, colour=1)),
    Case("allreduce(tensor=, opts=)", TypeError, FORMS,
         lambda s: s.group.allreduce(tensor=s.a, opts=options(s, "AllreduceOptions"))),
    Case("allreduce twice the same", TypeError, FORMS, lambda s: s.group.allreduce(s.a, tensor=s.a)),
    Case("broadcast from a string", TypeError, FORMS, lambda s: s.group.broadcast(s.a, "0")),
    Case("broadcast from 5", RuntimeError, "Group rank 5", lambda s: s.group.broadcast(s.a, 5), ours=ValueError,
         why="as broadcast(group_src=5) of both"),
    Case("broadcast without a root", TypeError, FORMS, lambda s: s.group.broadcast(s.a)),
    Case("barrier with a string", TypeError, FORMS, lambda s: s.group.barrier("x")),
    Case("send without a tag", TypeError, "tag", lambda s: s.group.send([s.a], s.next)),
    Case("send with a negative tag", RuntimeError, "Tag must be nonnegative", lambda s: s.group.send([s.a], s.next, -1)),
    Case("set_timeout(None)", TypeError, "timedelta", lambda s: s.group.set_timeout(None)),
    Case("set_timeout", None, "", lambda s: s.group.set_timeout(timedelta(seconds=9))),
    Case("all_to_all_single with wrong splits", RuntimeError, "Split sizes doesn't match",
         lambda s: s.group.all_to_all_single(s.zeros(3), s.zeros(3), [1, 1, 2], [1, 1, 1]), fatal="writes past the output"),
]

"""Tasks: point to point."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import arraycomm

from .data import contents, make
from .expect import expect, framework_here, given
from .worlds import Context


def ring(context: Context, framework: str) -> None:
    """Every dtype's bits go round; large ones as well, all ranks sending at once."""
    group, size, me = context.group, context.size, context.rank
    right, left = (me + 1) % size, (me - 1) % size
    for dtype, count in [("float32", 0), ("bool", 1), ("bfloat16", 7), ("int64", 1000), ("complex128", 20_000),
                         ("float32", 1 << 20)]:
        x = given(context, framework, contents(dtype, (count,), me, 41, True))
        want = contents(dtype, (count,), left, 41, True)
        work = group.isend(x, right, tag=3)
        got = group.recv(left, tag=3, like=x)
        context.check((got.source, got.tag) == (left, 3), f"source and tag: {got.source}, {got.tag}")
        expect(context, f"ring {dtype} {count}", got.array, want, like=x)
        work.wait(60)


def everyone(context: Context) -> None:
    """Each rank sends to each, itself included, before anybody receives."""
    group, size, me = context.group, context.size, context.rank
    sends = [group.isend(np.array([me, dest, 5]), dest, tag=dest) for dest in range(size)]
    receives = [group.irecv(source, tag=me, like=np.zeros(3, int)) for source in reversed(range(size))]
    for source, work in zip(reversed(range(size)), receives, strict=True):
        got = work.result(60)
        context.check(got.array.tolist() == [source, me, 5] and got.source == source, f"from {source}: {got}")
        context.check(work.source() == (source, me), f"source() {work.source()}")
    for sent in sends:
        sent.wait(60)


def tags(context: Context) -> None:
    """Receives take the message of their tag, in whatever order they come; one tag keeps its order."""
    group, size, me = context.group, context.size, context.rank
    right, left = (me + 1) % size, (me - 1) % size
    numbers = [(tag, i) for i in range(4) for tag in (0, 5, 2**40)]
    works = [group.isend(np.array([tag, i, me]), right, tag) for tag, i in numbers]
    for tag in (2**40, 0, 5):
        for i in range(4):
            got = group.recv(left, tag, like=np.zeros(3, int))
            context.check(got.array.tolist() == [tag, i, left], f"tag {tag}, message {i}: {got}")
    for work in works:
        work.wait(60)


def any_source(context: Context) -> None:
    """Rank 0 takes messages from whoever comes."""
    group, size, me = context.group, context.size, context.rank
    if me:
        for i in range(3):
            group.send(np.array([me, i]), 0, tag=9)
    else:
        seen: dict[int, list[int]] = {}
        for _ in range(3 * (size - 1)):
            got = group.recv(tag=9, like=np.zeros(2, int))
            context.check(got.source == got.array[0], f"any source: {got}")
            seen.setdefault(got.source, []).append(int(got.array[1]))
        context.check(seen == {rank: [0, 1, 2] for rank in range(1, size)}, f"any source: {seen}")


def batches(context: Context) -> None:
    """A batch's order does not matter: all ranks name their receives or their sends first, as they like."""
    group, size, me = context.group, context.size, context.rank
    right, left = (me + 1) % size, (me - 1) % size
    for count in (1, 300_000):
        out = np.zeros(count)
        x = np.full(count, float(me))
        works: list[Any]
        with group.batch():
            if me % 2:
                works = [group.send(x, right), group.recv(left, out=out)]
            else:
                works = [group.recv(left, out=out), group.send(x, right)]
            context.check(all(isinstance(work, arraycomm.Work) for work in works), "inside batch() there are Works")
        context.check(all(work.done() for work in works) and (out == left).all(), f"batch {count}: {out[:3]}")


def in_place(context: Context, framework: str) -> None:
    """out=x, and out of another library."""
    group, size, me = context.group, context.size, context.rank
    for other in ("numpy", "torch"):
        out = make(other, np.zeros(9, np.float32))
        work = group.isend(given(context, framework, np.full(9, me, np.float32)), (me + 1) % size)
        got = group.recv((me - 1) % size, out=out)
        context.check(got.array is out, "recv gives its out")
        expect(context, f"recv into {other}", out, np.full(9, (me - 1) % size, np.float32))
        work.wait(60)


def beside_collectives(context: Context) -> None:
    """A receive that waits does not hold up collectives, nor they it."""
    group, size, me = context.group, context.size, context.rank
    pending = group.irecv((me - 1) % size, tag=77, like=np.zeros(4))
    for _ in range(3):
        context.check(group.all_reduce(np.ones(10)).tolist() == [size] * 10, "all_reduce beside a receive")
    context.check(not pending.done(), "nobody has sent yet")
    group.barrier()
    work = group.isend(np.full(4, float(me)), (me + 1) % size, tag=77)
    context.check(pending.result(60).array.tolist() == [(me - 1) % size] * 4, "the receive ends")
    work.wait(60)


def in_a_thread(context: Context) -> None:
    """A thread that waits for a message, one without elements too, lets the others go on: what it waits for is sent by one."""
    group, size, me = context.group, context.size, context.rank
    for count in (0, 1, 20_000):
        with ThreadPoolExecutor(1) as pool:
            receiving = pool.submit(group.recv, (me - 1) % size, count, like=np.zeros(count))
            time.sleep(0.02)  # until it waits, which nothing tells
            group.send(np.full(count, float(me)), (me + 1) % size, tag=count)
            got = receiving.result(60)
        context.check(got.array.tolist() == [(me - 1) % size] * count, f"{count} elements: {got}")


def wrong_size(context: Context) -> None:
    """A message of another size or dtype than its receive is an error of that receive; the group goes on."""
    group, size, me = context.group, context.size, context.rank
    right, left = (me + 1) % size, (me - 1) % size
    wrong: list[tuple[Any, Any]] = [(np.zeros(5), np.zeros(4)), (np.zeros(3), np.zeros(4)),
                                    (np.zeros(4, np.int64), np.zeros(4))]
    for x, like in wrong:
        work = group.isend(x, right, tag=1)
        like[:] = 7
        context.raises(f"a message of {x.size} {x.dtype} for {like.size} {like.dtype}", arraycomm.CollectiveMismatch, "",
                       partial(group.recv, left, tag=1, out=like))
        context.check((like == 7).all(), f"a refused message of {x.size} {x.dtype} was written: {like}")
        work.wait(60)
    got = framework_here(context, "mixed", "float64")
    context.check(group.all_reduce(make(got, np.ones(2))).tolist() == [size] * 2, "the group goes on")


def long(context: Context) -> None:
    """Messages long enough to be read where they lie: by tag, from anybody, of parts of arrays, and of the wrong size."""
    group, size, me = context.group, context.size, context.rank
    right, left = (me + 1) % size, (me - 1) % size
    for count in (8192, 32_768, 32_769, 131_071, 700_001):
        x, grid = contents("float64", (count,), me, count), np.arange(2.0 * count).reshape(count, 2) + me
        works = [group.isend(x, right, tag=1), group.isend(grid[:, 1], right, tag=2), group.isend(x[1:], right, tag=3)]
        part = group.recv(tag=3, like=x[1:]).array
        column = group.recv(left, tag=2, like=x).array
        whole = group.recv(left if count % 2 else None, tag=1, like=x)
        want = contents("float64", (count,), left, count)
        context.check(whole.source == left and np.array_equal(whole.array, want), f"{count} elements")
        context.check(np.array_equal(part, want[1:]), f"{count} elements without the first")
        context.check(np.array_equal(column, np.arange(1.0, 2.0 * count, 2) + left), f"a column of {count}")
        for work in works:
            work.wait(60)
    work = group.isend(np.zeros(700_000), right)  # so long that its sender waits for an answer over sockets too
    for end in (lambda: group.recv(left, like=np.zeros(699_999)), lambda: work.wait(60)):
        context.raises("a message for a shorter one", arraycomm.CollectiveMismatch, "", end)
    _symmetric(context)


def _symmetric(context: Context) -> None:
    """From and into symmetric arrays, at an offset, and from one into an array of the caller's own."""
    group, size, me = context.group, context.size, context.rank
    right, left = (me + 1) % size, (me - 1) % size
    for count in (1000, 8192, 8193, 600_000):
        x, out, own = group.empty(count), group.empty(count), np.empty(count, np.float32)
        rising = np.arange(count, dtype=np.float32) % 1000
        for turn in range(3):
            x[...] = rising + (me + turn)
            want = rising + (left + turn)
            works = [group.isend(x, right, tag=turn), group.isend(x[7:], right, tag=turn)]
            group.recv(left, tag=turn, out=out)
            group.recv(left, tag=turn, out=own[7:])
            context.check(np.array_equal(out, want), f"symmetric message of {count}")
            context.check(np.array_equal(own[7:], want[7:]), f"symmetric message of {count} into a private array")
            for work in works:
                work.wait(60)



def pending_objects(context: Context) -> None:
    """Several under way, of equal and other tags, long and short ones, waited for in another order than they were sent in."""
    group, me, size = context.group, context.rank, context.size
    right, left = (me + 1) % size, (me - 1) % size
    said: list[Any] = [b"", {"a": [1, 2, 3]}, np.arange(200_000), "x" * 50, b"\1" * 1_500_000, None]  # long: not kept
    posted = [group.irecv_object(left, 7) for _ in said[:3]]
    sent = [group.isend_object(one, right, 7) for one in said]
    posted += [group.irecv_object(None if size < 3 else left, 7) for _ in said[3:]]
    found = {index: posted[index].result(60) for index in reversed(range(len(said)))}
    arraycomm.wait_all(sent, 60)
    assert all(np.array_equal(found[index][0], one) and found[index][1] == left for index, one in enumerate(said))
    assert all(work.done() for work in (*sent, *posted)) and posted[1].result() == ({"a": [1, 2, 3]}, left)
    group.barrier()
    sent = [group.isend_object(tag, right, tag) for tag in (3, 1, 2)] + [group.isend(np.full(2, 9.0), right, 3)]
    assert group.recv_object(left, arraycomm.ANY_TAG) == (3, left)  # the first that came
    assert group.irecv_object(left, 2).result(60) == (2, left)
    assert group.irecv_object(tag=arraycomm.ANY_TAG).result(60) == (1, left)
    late = group.irecv_object(left, 5)
    context.raises("nothing has come", TimeoutError, "continues", lambda: late.result(0.01))
    assert not late.done() and group.recv(left, arraycomm.ANY_TAG, like=np.zeros(2)).array.tolist() == [9, 9]
    group.barrier()
    with group.batch():
        last: Any = group.recv_object(left, 6)
        group.send_object(range(3), right, 6)
    sent += [group.isend_object("late", right, 5), group.isend_object({1}, right, 8, allow_pickle=True)]
    assert arraycomm.wait_any([late], 60) == 0 and late.result() == ("late", left) and last.result(60) == (range(3), left)
    unlike = group.irecv_object(left, 8)
    context.raises("a pickle", ValueError, "allow_pickle", lambda: unlike.result(60))
    arraycomm.wait_all(sent, 60)
    for call in (lambda: group.isend_object(1, size), lambda: group.irecv_object(size), lambda: group.irecv_object(tag=2**61),
                 lambda: group.isend_object(1, right, -1)):
        context.raises("no such rank or tag", ValueError, "rank|dest|source|tag", call)
    context.raises("what cannot be sent", TypeError, "", lambda: group.isend_object(object(), right))
    context.raises("no tag", TypeError, "ANY_TAG", lambda: group.irecv_object(tag=None))  # type: ignore[arg-type]
    group.barrier()


def any_tag(context: Context) -> None:
    """In the order of arrival, with the real source and tag; objects' messages are none of them. A probe leaves what it finds."""
    group = context.group
    me, size = context.rank, context.size
    right, left = (me + 1) % size, (me - 1) % size
    assert group.probe(tag=arraycomm.ANY_TAG, timeout=0) is None and group.probe(left, 3, timeout=0.01) is None
    group.barrier()
    x = np.full(4, me, np.int32)
    group.send_object("first", right)
    for tag, count in ((5, 4), (3, 2), (2**61, 3)):
        group.send(x[:count], right, tag)
    found = group.probe(left, 3)
    assert found == (left, 3, arraycomm.DType.INT32, 2), found
    for tag, count in ((5, 4), (3, 2), (2**61, 3)):
        for source in (None, left):
            found = group.probe(source, arraycomm.ANY_TAG)
            assert found == (left, tag, arraycomm.DType.INT32, count), found
        out = np.empty(found.elements, found.dtype.label)
        got = group.recv(left if tag == 5 else None, arraycomm.ANY_TAG, out=out) if tag != 3 else \
            group.irecv(tag=arraycomm.ANY_TAG, out=out).result()
        assert (got.source, got.tag) == (left, tag) and (out == left).all(), got
    assert group.probe(tag=arraycomm.ANY_TAG, timeout=0) is None
    assert group.recv_object() == ("first", left)
    group.barrier()
    posted = [group.irecv(left, arraycomm.ANY_TAG, like=x), group.irecv(left, 9, like=x)]  # receives come before messages
    group.barrier()
    sent = [group.isend(x, right, tag) for tag in (9, 9)]
    assert [got.tag for got in arraycomm.wait_all(posted, 20)] == [9, 9]
    arraycomm.wait_all(sent, 20)
    group.barrier()


def polled(context: Context) -> None:
    """A receive that is asked again and again leaves the group usable, as a probe does."""
    group = context.group
    me, size = context.rank, context.size
    x = np.full(3, me)
    work = group.irecv((me - 1) % size, 8, like=x)
    for _ in range(3):
        with pytest.raises(TimeoutError, match="it continues"):
            work.result(0.01)
    assert not work.done() and group.all_reduce(x)[0] == size * (size - 1) // 2
    group.send(x, (me + 1) % size, 8)
    assert arraycomm.wait_any([work], 20) == 0 and (work.result().array == (me - 1) % size).all()
    got = group.sendrecv(x, (me + 1) % size, (me - 1) % size, 7)
    assert (got.array == (me - 1) % size).all() and (got.source, got.tag) == ((me - 1) % size, 7)
    with pytest.raises(ValueError, match="out overlaps x"):
        group.sendrecv(x, 0, 0, out=x)
    other = group.irecv(tag=77, like=x)
    with pytest.raises(TimeoutError, match="none of 1 operations"):
        arraycomm.wait_any([other], 0.01)
    with pytest.raises(TimeoutError, match=r"^1 of 2 operations have not ended after 0\.01 s; they continue"):
        arraycomm.wait_all([work, other], 0.01)
    waits: list[Callable[..., object]] = [arraycomm.wait_all, arraycomm.wait_any, lambda works, timeout: other.wait(timeout)]
    for wait in waits:
        for timeout in ("1", True, datetime.timedelta(1)):
            with pytest.raises(TypeError, match="timeout must be a number of seconds, got"):
                wait([other], timeout)
        with pytest.raises(ValueError, match="nan"):
            wait([other], float("nan"))
    for wait in waits[:2]:
        for wrong in (None, other, [1]):
            with pytest.raises(TypeError, match=r"wait_a.. needs .*Works.*, got (NoneType|.*Work|int)$"):
                wait(wrong)
    part = group.split(0, -me)
    assert part is not None and part.ranks == tuple(group.ranks[r] for r in reversed(range(size)))
    part.close()
    group.send(x, (me + 1) % size, 77)
    other.wait()

"""Tasks: arrays on CUDA devices over an MPI library that takes them. Over the stand-ins (tests/standin/mpi.c)."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import arraycomm
from arraycomm.core.base.errors import CollectiveMismatch, CollectiveTimeout
from tests.standin import arrays

from .data import OPS, contents, defined, reduced
from .expect import expect, given
from .worlds import Context

_OWN = {"int32": ("sum", "product", "min", "max", "band", "bor", "bxor"), "float32": ("sum", "product"), "complex64": ("sum",)}
_REDUCING = ("all_reduce", "reduce", "reduce_scatter", "scan")


def _counts() -> tuple[int, int]:
    """Arrays that MPI was given, and copies between the devices and the host."""
    library = ctypes.CDLL(os.environ["ARRAYCOMM_MPI_LIBRARY"])
    return library.standin_mpi_taken(), sum(arrays.cuda().tell("standin_copies", kind) for kind in (1, 2))


@contextmanager
def _expected(context: Context, label: str, direct: bool) -> Iterator[None]:
    """direct: MPI gets the arrays and nothing is copied; otherwise they are staged."""
    before = _counts()
    yield
    taken, copies = (now - then for now, then in zip(_counts(), before, strict=True))
    context.check((taken > 0, copies > 0) == (direct, not direct), f"{label}: MPI got {taken} arrays, and {copies} were copied")


def operations(context: Context, direct: bool) -> None:
    """Which operations MPI gets, and which are staged."""
    group, size, me = context.group, context.size, context.rank
    mine = contents("float32", (size * 7,), me, 71)
    inputs = [contents("float32", (size * 7,), rank, 71) for rank in range(size)]
    x, root = given(context, "cuda", mine), size - 1
    part = slice(me * 7, me * 7 + 7)
    like = arrays.asarray(mine[:7])
    moves: list[tuple[str, Callable[..., Any], Any, bool]] = [
        ("broadcast", lambda **how: group.broadcast(x, root, **how), inputs[root], True),
        ("all_gather", lambda **how: group.all_gather(x, **how), np.concatenate(inputs), True),
        ("gather", lambda **how: group.gather(x, root, **how), np.concatenate(inputs) if me == root else None, True),
        ("scatter", lambda **how: group.scatter(x if me == root else None, root, like=like, **how), inputs[root][part], True),
        ("all_to_all", lambda **how: group.all_to_all(x, **how), np.concatenate([a[part] for a in inputs]), True),
        ("uneven all_gather", lambda **how: group.all_gather(x[: me + 1], uneven=True, **how),
         np.concatenate([a[: rank + 1] for rank, a in enumerate(inputs)]), False),
        ("exscan", lambda **how: group.exscan(x, **how), reduced("sum", inputs[:me]) if me else np.zeros_like(mine), False),
        ("minimum of floats", lambda **how: group.all_reduce(x, "min", **how), reduced("min", inputs), False),
        ("avg", lambda **how: group.all_reduce(x, "avg", **how), reduced("avg", inputs), False),
    ]
    for later in (False, True):
        for name, call, want, own in moves:
            with _expected(context, f"{name}, later={later}", direct and own):
                got = call(async_op=True).result(60) if later else call()
            if want is not None:
                expect(context, f"{name}, later={later}", got, want, like=x, close=1e-6 if name == "avg" else 0.0)


def reductions(context: Context) -> None:
    """MPI gets what it computes as the engine does."""
    for dtype, op in itertools.product(("int8", "int32", "bfloat16", "float32", "complex64"), OPS):
        inputs = [contents(dtype, (context.size * 3,), rank, 72) for rank in range(context.size)]
        x = given(context, "cuda", inputs[context.rank])
        some = _REDUCING if (dtype, op) == ("float32", "sum") else _REDUCING[:1]
        for name in some if defined(op, dtype) and op != "premul_sum" else ():
            with _expected(context, f"{name} {op} of {dtype}", op in _OWN.get(dtype, ())):
                got = getattr(context.group, name)(x, *[0] * (name == "reduce"), op=op)
            if name == "all_reduce":
                expect(context, f"{name} {op} of {dtype}", got, reduced(op, inputs), like=x)


def in_place(context: Context) -> None:
    """On all ranks, on some, and on none."""
    for odd in (range(context.size), range(1, context.size), range(1), range(0)):
        with _expected(context, f"in place on {odd}", True):
            _reduced_in_place(context, context.rank in odd)
            _moved_in_place(context, context.rank in odd)


def _reduced_in_place(context: Context, here: bool) -> None:
    group, size, me, root = context.group, context.size, context.rank, context.size - 1
    inputs = [contents("float32", (size * 3,), rank, 73) for rank in range(size)]
    total, part = reduced("sum", inputs), slice(3 * me, 3 * me + 3)
    calls: list[tuple[str, Callable[[Any, Any], Any], Any]] = [
        ("all_reduce", lambda x, y: group.all_reduce(x, out=y), total),
        ("scan", lambda x, y: group.scan(x, out=y), reduced("sum", inputs[: me + 1])),
        ("reduce", lambda x, y: group.reduce(x, root, out=y if me == root else None), total if me == root else None),
    ]
    for name, call, want in calls:
        x = given(context, "cuda", inputs[me])
        y = x if here else arrays.empty(x.shape, "float32")
        call(x, y)
        if want is not None:
            expect(context, f"{name}, here {here}", y, want)
    x = given(context, "cuda", inputs[me])
    y = x[part] if here else arrays.empty((3,), "float32")
    group.reduce_scatter(x, out=y)
    expect(context, f"reduce_scatter, here {here}", y, total[part])
    rest = inputs[me].copy()
    if here:
        rest[part] = total[part]
    expect(context, "the rest of the array", x, rest)


def _moved_in_place(context: Context, here: bool) -> None:
    group, size, me, root = context.group, context.size, context.rank, context.size - 1
    inputs = [contents("float32", (3,), rank, 73) for rank in range(size)]
    whole = arrays.asarray(np.zeros(3 * size, np.float32))
    x = whole[3 * me : 3 * me + 3] if here else arrays.empty((3,), "float32")
    group.all_gather(x.fill(inputs[me]), out=whole)
    expect(context, f"all_gather, here {here}", whole, np.concatenate(inputs))
    whole.fill(np.zeros(3 * size))
    group.gather(x.fill(inputs[me]), root, out=whole if me == root else None)
    if me == root:
        expect(context, f"gather, here {here}", whole, np.concatenate(inputs))
    y = x if here else arrays.empty((3,), "float32")
    group.broadcast(x.fill(inputs[me]), root, out=y)
    expect(context, f"broadcast, here {here}", y, inputs[root])
    expect(context, "its input", x, inputs[root if here else me])


def sizes(context: Context) -> None:
    """Without elements, with a few, and more than MPI sends at once; every width."""
    for dtype in ("bool", "int16", "float32", "float64", "complex128", "float8_e4m3fn"):
        for count in (0, 1, 300_000 if dtype == "float32" else 11):
            inputs = [contents(dtype, (context.size * count,), rank, 74) for rank in range(context.size)]
            x = given(context, "cuda", inputs[context.rank])
            part = slice(context.rank * count, (context.rank + 1) * count)
            expect(context, f"all_to_all of {count} {dtype}", context.group.all_to_all(x),
                   np.concatenate([a[part] for a in inputs]))
            expect(context, f"all_gather of {count} {dtype}", context.group.all_gather(x), np.concatenate(inputs))


def long(context: Context) -> None:
    """Longer than MPI's counts reach: staged, by the number of elements alone."""
    from arraycomm.backends.mpi import on_gpus

    x = given(context, "cuda", np.ones(context.size * 4, np.float32))
    most, on_gpus._MOST = on_gpus._MOST, context.size * context.size * 4 - 1
    with _expected(context, "all_to_all within the limit", True):
        context.group.all_to_all(x)
    with _expected(context, "all_gather beyond it", False):
        context.group.all_gather(x)
    on_gpus._MOST = most


def differ(context: Context) -> None:
    """Ranks that call something else, or have their array elsewhere: each is told, and MPI has got nothing."""
    group, me = context.group, context.rank
    calls: list[tuple[Callable[[arraycomm.Group], Any], Callable[[arraycomm.Group], Any], str]] = [
        (lambda g: g.all_reduce(given(context, "cuda", np.ones(5))), lambda g: g.all_reduce(np.ones(5)), "is on a GPU"),
        (lambda g: g.broadcast(given(context, "cuda", np.ones(5)), 1), lambda g: g.broadcast(np.ones(5), 1), "is on a GPU"),
        (lambda g: g.all_reduce(given(context, "cuda", np.ones(5))), lambda g: g.all_reduce(given(context, "cuda", np.ones(6))),
         "of 5 float64.* of 6 float64|of 6 float64.* of 5 float64"),
        (lambda g: g.all_reduce(given(context, "cuda", np.ones(5))),
         lambda g: g.all_reduce(given(context, "cuda", np.ones(5, np.float32))), "float64.*float32|float32.*float64"),
        (lambda g: g.all_gather(given(context, "cuda", np.ones(5))), lambda g: g.all_reduce(given(context, "cuda", np.ones(5))),
         "all_gather.*all_reduce|all_reduce.*all_gather"),
    ]
    for number, (most, one, text) in enumerate(calls):
        part = group.split(0)
        assert part is not None
        before = _counts()[0]

        def call(part: arraycomm.Group = part, do: Any = one if me == 0 else most) -> Any:
            return do(part)

        context.raises(f"difference {number}", CollectiveMismatch, text, call)
        context.check(_counts()[0] == before, f"difference {number}: MPI has got an array")
        part.close()
        group.barrier()


def late(context: Context) -> None:
    """A rank that does not come is named; MPI keeps the arrays of the others."""
    from arraycomm.backends.mpi import on_gpus

    group, me, kept = context.group, context.rank, len(on_gpus._forever)
    part = group.split(0)
    assert part is not None
    x = given(context, "cuda", np.ones(1000))
    part.all_reduce(x)
    if me:
        context.raises("late", CollectiveTimeout, "rank 0 .*did not take part", lambda: part.all_reduce(x, timeout=0.5))
        context.check(len(on_gpus._forever) == kept + 1, "the array is kept")
    group.barrier()
    part.close()


# ---- messages ----

def _none_buffered() -> Any:
    """Inside, only messages without contents are short."""
    from arraycomm.backends.mpi import on_gpus

    return mock.patch.object(on_gpus, "_BUFFERED", 0)


def messages(context: Context, direct: bool) -> None:
    """To the next rank: of every width and length, later and at once."""
    group, me = context.group, context.rank
    right, left = (me + 1) % context.size, (me - 1) % context.size
    for dtype, count in (("bool", 1), ("bfloat16", 3), ("float32", 1000), ("complex128", 70_001), ("int64", 1 << 19)):
        x, want = given(context, "cuda", contents(dtype, (count,), me, 81)), contents(dtype, (count,), left, 81)
        for later in (False, True):
            label = f"message of {count} {dtype}, later={later}"
            with _none_buffered(), _expected(context, label, direct):
                if later:
                    coming = group.irecv(left, 3, like=x)
                    going = group.isend(x, right, 3)
                    got = coming.result(60)
                    going.wait(60)
                else:
                    got = group.sendrecv(x, right, left, 3)
            context.check((got.source, got.tag) == (left, 3), f"{label} came from {got.source}, {got.tag}")
            expect(context, label, got.array, want, like=x)


def short_messages(context: Context) -> None:
    """They are buffered, so all ranks may send first, and staged; as are empty ones, and messages of a rank to itself."""
    group, me = context.group, context.rank
    x = given(context, "cuda", np.full(1000, float(me)))
    with _expected(context, "short messages", False):
        group.send(x, (me + 1) % context.size)
        got = group.recv((me - 1) % context.size, like=x)
    expect(context, "short message", got.array, np.full(1000, float((me - 1) % context.size)))
    long = given(context, "cuda", np.full(300_000, float(me)))
    with _expected(context, "message to itself", False):
        got = group.sendrecv(long, me, me)
    expect(context, "message to itself", got.array, np.full(300_000, float(me)))
    before = _counts()[0]
    with _none_buffered():
        got = group.sendrecv(x[:0], (me + 1) % context.size, (me - 1) % context.size)
    context.check(_counts()[0] == before and got.array.numpy().size == 0, "an empty message")


def host_messages(context: Context) -> None:
    """One side's array is on the host, in messages of some lengths that are all under way at once."""
    group, me = context.group, context.rank
    right, left = (me + 1) % context.size, (me - 1) % context.size
    kinds = [(give, take) for give in ("cuda", "numpy") for take in ("numpy", "cuda")] * 5
    with _none_buffered():
        going: list[Any] = []
        coming: list[Any] = []
        before = _counts()[0]
        for number, (give, take) in enumerate(kinds):
            count = 10 ** (number // 4 + 1)
            going.append(group.isend(given(context, give, contents("float32", (count,), me, number)), right, number % 3))
            coming.append(group.irecv(left, number % 3, like=given(context, take, np.zeros(count, np.float32))))
        for number, ((give, take), work) in enumerate(zip(kinds, coming, strict=True)):
            want = contents("float32", (10 ** (number // 4 + 1),), left, number)
            expect(context, f"{number}: {want.size} from {give} to {take}", work.result(60).array, want)
        for work in going:
            work.wait(60)
    want_taken = sum((give == "cuda") * (1 + (take == "cuda")) for give, take in kinds)
    context.check(_counts()[0] - before == want_taken, f"MPI got {_counts()[0] - before} arrays, not {want_taken}")


def any_source(context: Context) -> None:
    """Rank 0 takes what comes, of any tag, after a look at it; those of a rank in order."""
    group, size, me = context.group, context.size, context.rank
    with _none_buffered():
        if me:
            works = [group.isend(given(context, "cuda", np.full(5000, float(10 * me + i))), 0, 4 + i) for i in range(3)]
            for work in works:
                work.wait(60)
        seen: dict[int, list[float]] = {}
        for _ in range(3 * (size - 1) if me == 0 else 0):
            found = group.probe(tag=arraycomm.ANY_TAG)
            assert found is not None
            context.check((found.elements, found.dtype.label) == (5000, "float64"), f"{found}")
            like = given(context, "cuda", np.zeros(5000))
            got = group.recv(tag=arraycomm.ANY_TAG, like=like)
            value = float(got.array.numpy()[-1])
            context.check(value == 10 * got.source + got.tag - 4, f"{value} from {got.source}, {got.tag}")
            seen.setdefault(got.source, []).append(value)
        context.check(seen == {rank: [10.0 * rank + i for i in range(3)] for rank in range(1, size) if me == 0}, f"order: {seen}")


def ordered(context: Context) -> None:
    """A message waits for what the device is still to do with the array; its Work may be dropped."""
    group, me = context.group, context.rank
    right, left = (me + 1) % context.size, (me - 1) % context.size
    for number in range(5):
        x, y = arrays.empty((70_000,), "float32"), arrays.empty((70_000,), "float32")
        group.isend(x.fill(np.full(70_000, float(me + number))), right)
        got = group.recv(left, out=y.fill(np.full(70_000, -1.0)))
        context.check(got.array is y, "out")
        expect(context, f"message {number}", y, np.full(70_000, float(left + number), np.float32))
    with group.batch():
        group.send(x, right)
        pending: Any = group.recv(left, like=y)
    expect(context, "batch", pending.result().array, np.full(70_000, float(left + 4), np.float32))


def groups_that_close(context: Context) -> None:
    """Each rank closes the group as soon as its part is done."""
    for number in range(20):
        part = context.group.split(0)
        assert part is not None
        x = given(context, "cuda", np.full(100_000, float(number)))
        if part.rank == 1:
            part.send(x, 0)
        elif part.rank == 0:
            expect(context, f"group {number}", part.recv(1, like=x).array, np.full(100_000, float(number)))
        part.close()


def failed_messages(context: Context) -> None:
    """What MPI may still use is kept, and nothing else; later groups' messages are right."""
    from arraycomm.backends.mpi import on_gpus

    kept, group = len(on_gpus._forever), context.group
    x = given(context, "cuda", np.full(100_000, float(context.rank)))
    _truncated(context, x)
    context.check(len(on_gpus._forever) == kept, "MPI has not got the arrays")
    for number in range(3):
        part = group.split(0)
        assert part is not None
        if part.rank == 0:
            os.environ["STANDIN_MPI"] = "fails"  # and takes no messages of so many elements
            context.raises("a send", arraycomm.DistBackendError, "library underneath failed", partial(part.send, x, 1))
            os.environ["STANDIN_MPI"] = "gpus"
        elif part.rank == 1:
            context.raises("a receive", arraycomm.DistError, "library underneath failed", partial(part.recv, 0, like=x))
        group.barrier()
        part.close("failed")
        context.check(len(on_gpus._forever) == kept + (number + 1) * (group.rank < 2), f"{len(on_gpus._forever) - kept} are kept")
        messages(context, True)


def _truncated(context: Context, x: Any) -> None:
    """And late."""
    before, group = _counts()[0], context.group
    part = group.split(0)
    assert part is not None
    if part.rank == 0:
        context.raises("truncated send", CollectiveMismatch, "does not fit the posted receive", partial(part.send, x, 1))
    elif part.rank == 1:
        context.raises("truncated receive", CollectiveMismatch, "of 99999 float64.* of 100000 float64",
                       partial(part.recv, 0, like=x[:99_999]))
    part.barrier()
    if part.rank == 0:
        context.raises("late", CollectiveTimeout, "rank 1 .*did not take part", partial(part.send, x, 1, timeout=0.2))
    group.barrier()
    part.close("late")
    context.check(_counts()[0] == before, "MPI has got a message that is not received")

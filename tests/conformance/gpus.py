"""Tasks for groups whose arrays are on GPUs: those of the stand-in (tests/standin/arrays.py)."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import arraycomm
from arraycomm.core.base.errors import DeviceError
from tests.present import present
from tests.standin import arrays

from . import reductions as plain
from .data import COMPLEX, OPS, contents, defined, reduced
from .expect import expect
from .worlds import Context

_BITWISE = ("band", "bor", "bxor")


def _native(op: str, dtype: str) -> bool:
    if dtype == "bool":
        return op != "bxor"
    if dtype.startswith("float8") and op == "premul_sum":
        return False
    return op not in _BITWISE and not (dtype in COMPLEX and op == "product")


def reductions(context: Context, dtypes: Sequence[str]) -> None:
    """What NCCL does itself. The stand-in reduces as the engine does, so that bits can be compared: those of rank order."""
    for dtype in dtypes:
        for op in OPS:
            if defined(op, dtype) and _native(op, dtype):
                factor = 0.5 if dtype.startswith(("float", "complex", "bfloat")) else -3.0
                for task in (plain.all_reduce, plain.reduce, plain.reduce_scatter):
                    task(context, "cuda", dtype, op, factor, (3, 5), True, 0.0)


def alone(context: Context) -> None:
    """Every element of what one rank multiplies, also into place: NCCL before 2.29.7 forgets some at the end."""
    for dtype in ("int8", "bfloat16", "float32", "float64", "complex64"):
        for count in (0, 1, 8191, 8192, 20_001, 300_003, 1_000_003):
            x = contents(dtype, (count,), 0, 3, True)
            for op, factor in (("avg", 1), ("premul_sum", 2)):
                what = arraycomm.premul_sum(2.0) if op == "premul_sum" else op
                want = x * np.array(factor, x.dtype)
                expect(context, f"{op} of {count} {dtype}", context.group.all_reduce(arrays.asarray(x), what), want)
                there = arrays.asarray(x)
                context.group.reduce_scatter(there, what, out=there)
                expect(context, f"{op} of {count} {dtype} in place", there, want)


def uneven_scatter(context: Context, rows: Sequence[Sequence[int]]) -> None:
    for counts in rows:
        counts = [counts[rank % len(counts)] for rank in range(context.size)]
        inputs = [contents("float32", (sum(counts), 3), rank, 4, True) for rank in range(context.size)]
        start = sum(counts[: context.rank])
        y = context.group.reduce_scatter(arrays.asarray(inputs[context.rank]), counts=counts)
        expect(context, f"reduce_scatter counts {counts}", y, reduced("sum", inputs)[start : start + counts[context.rank]])


def in_flight(context: Context, number: int = 100) -> None:
    """Many at once, waited for in another order, dropped, and one by one with a timeout."""
    group, inputs = context.group, [np.arange(50, dtype=np.float32) + rank for rank in range(context.size)]
    want = reduced("sum", inputs)
    x = arrays.asarray(inputs[context.rank])
    works = [group.all_reduce(x, async_op=True) for _ in range(number)]
    for work in reversed(works[::2]):
        expect(context, "all_reduce in flight", work.result(), want)
    del works
    work = group.all_gather(x, async_op=True)
    work.wait(60.0)
    context.check(work.done(), "a Work that was waited for with a timeout has ended")
    expect(context, "all_gather in flight", work.result(), np.concatenate(inputs))
    expect(context, "behind it", group.all_reduce(x), want)


def two_backends(context: Context) -> None:
    """Host arrays go by the CPU engine, arrays of a GPU by NCCL, in this group and in those split off."""
    half = context.group.split(0)
    assert half is not None
    with half:
        for group in (context.group, half):
            context.check(group.backend == "cpu:socket,cuda:nccl", group.backend)
            movers = [type(group._movers[1]).__name__, type(group._movers[2]).__name__]
            context.check(movers == ["SocketCommunicator", "NcclCommunicator"], f"{movers}")
            host = np.full(300, context.rank + 1.0, np.float32)
            for x in (host, arrays.asarray(host)):
                expect(context, f"all_reduce of {type(x)}", group.all_reduce(x), sum(range(1, context.size + 1)) + 0 * host)
            group.check_peers()
            group.barrier()


def streams(context: Context) -> None:
    """Every operation comes after what its array's library enqueued before, and before what it enqueues afterwards, whichever
    stream that works on; the host is not waited for."""
    group, me = context.group, context.rank
    other = arrays.cuda().make("cudaStreamCreateWithFlags", 1)
    for async_op in (False, True):
        x = arrays.asarray(np.full(1000, 1.0 + me, np.float32))
        x.numpy()  # the two streams have no order
        with arrays.use_stream(other):
            x.fill(np.full(1000, 10.0 + me))
            work = group.all_reduce(x, async_op=True) if async_op else None
            y = work.result() if work else group.all_reduce(x)
            x.fill(np.zeros(1000))  # after the operation has read it
            expect(context, f"all_reduce on another stream, async {async_op}", y,
                   np.full(1000, sum(10.0 + rank for rank in range(context.size)), np.float32))
        arrays.cuda().call("cudaStreamSynchronize", other)
    with arrays.as_cupy() as kind:
        _later(context, kind)


def _later(context: Context, kind: type) -> None:
    """Work.wait() orders the stream that is current then, not the one of the call."""
    group = context.group
    x = arrays.asarray(np.full(70_000, 1.0, np.float32), kind=kind)
    context.group.barrier()
    work = group.all_reduce(x, async_op=True)
    with arrays.use_stream(arrays.cuda().make("cudaStreamCreateWithFlags", 1)):
        expect(context, "waited for on another stream", work.result(), np.full(70_000, context.size, np.float32))


def messages(context: Context) -> None:
    """A ring, and everybody with everybody, in batches; lone messages between pairs."""
    group, me, size = context.group, context.rank, context.size
    mine = np.arange(9, dtype=np.int16) + 100 * me
    with group.batch():
        sends = [group.send(arrays.asarray(mine + peer), peer) for peer in range(size)]
        receives: list[Any] = [group.recv(peer, like=arrays.asarray(np.zeros(9, np.int16))) for peer in range(size)]
    for peer, work in enumerate(receives):
        got = work.result()
        expect(context, f"from {peer} in a batch", got.array, np.arange(9, dtype=np.int16) + 100 * peer + me)
        context.check((got.source, got.tag) == (peer, 0), f"source {got.source}, tag {got.tag}")
    for sent in sends:
        present(sent).wait(60.0)
    for first in range(0, size - 1, 2):
        if me == first:
            group.send(arrays.asarray(mine), first + 1)
        elif me == first + 1:
            got = group.recv(first, like=arrays.asarray(np.zeros(9, np.int16)))
            expect(context, "a lone message", got.array, np.arange(9, dtype=np.int16) + 100 * first)
    with group.batch():
        work = group.all_reduce(arrays.asarray(np.ones(5, np.float32)), async_op=True)
        again = group.all_reduce(arrays.asarray(np.full(3, 2.0, np.float32)), async_op=True)
    expect(context, "a collective in a batch", work.result(), np.full(5, size, np.float32))
    expect(context, "another one", again.result(), np.full(3, 2.0 * size, np.float32))
    with group.batch():
        context.raises("a result in a batch", ValueError, "async_op=True",
                       lambda: group.all_reduce(arrays.asarray(np.ones(5, np.float32))))
        work = group.all_reduce(arrays.asarray(np.ones(5, np.float32)), async_op=True)
        for wait in (work.wait, lambda: work.wait(0.1), work.result):
            context.raises("a wait in the batch", ValueError, r"wait\(\) for all_reduce within batch\(\)", wait)
    expect(context, "behind the batch", work.result(), np.full(5, size, np.float32))


def batches(context: Context) -> None:
    """NCCL has one group of calls a thread: within a batch of one group another one can do nothing."""
    group, x = context.group, arrays.asarray(np.ones(5, np.float32))
    other = group.split(0)
    assert other is not None
    with other:
        with group.batch():
            work = group.all_reduce(x, async_op=True)
            for call in (lambda: other.all_reduce(x), lambda: other.all_reduce(x, async_op=True),
                         lambda: other.batch().__enter__(), lambda: group.subgroup(range(context.size), "in a batch")):
                context.raises("another group within a batch", ValueError, r"within batch\(\)", call)
        expect(context, "the batch itself", work.result(), np.full(5, context.size, np.float32))
        expect(context, "the other group behind it", other.all_reduce(x), np.full(5, context.size, np.float32))


def dropped_inputs(context: Context) -> None:
    """A library without streams, as JAX, uses the memory of an array again when nobody holds it: it is held to the end."""
    library = ctypes.CDLL(os.environ["ARRAYCOMM_NCCL_LIBRARY"])
    x = arrays.asarray(np.ones(50, np.float32))
    x.numpy()
    arrays.asarray(np.ones(1))  # what filled x has ended, and is forgotten
    dropped = threading.Event()
    weakref.finalize(x, dropped.set).atexit = False
    library.standin_nccl_slow(ctypes.c_long(200_000_000))
    y = context.group.all_reduce(x)
    del x
    context.check(not dropped.is_set(), "the input is held while the operation is under way")
    expect(context, "of an input that was dropped", y, np.full(50, context.size, np.float32))
    library.standin_nccl_slow(ctypes.c_long(0))
    context.check(dropped.wait(20), "and not longer")


def captures(context: Context) -> None:
    """A stream that is captured into a CUDA graph is refused, and one of the program's own is left alone meanwhile."""
    group, x = context.group, arrays.asarray(np.ones(50, np.float32))
    arrays.cuda().tell("standin_capture", arrays.LEGACY)
    for call in (lambda: group.all_reduce(x), lambda: group.all_reduce(x, async_op=True)):
        context.raises("a captured stream", DeviceError, "CUDA graph", call)
    arrays.cuda().tell("standin_capture", arrays.cuda().make("cudaStreamCreateWithFlags", 1))
    try:
        dropped_inputs(context)
    finally:
        arrays.cuda().tell("standin_capture", 0)
    expect(context, "after a capture", group.all_reduce(x), np.full(50, context.size, np.float32))


def splits(context: Context) -> None:
    """All ranks, in order and backwards , and the even and the odd ones."""
    group, me, size = context.group, context.rank, context.size
    everybody = list(range(size))
    for color, key, members in ((0, 0, everybody), (0, -me, everybody[::-1]), (me % 2, 0, everybody[me % 2 :: 2])):
        sub = group.split(color, key)
        assert sub is not None
        with sub:
            y = sub.all_gather(arrays.asarray(np.array([me], np.int32)))
            expect(context, f"split {color} {key}", y, np.array(members, np.int32))
            sub.barrier()


def beside(context: Context) -> None:
    """Arrays in host memory, on the same group."""
    for array in (np.ones(3, np.float32), arrays.asarray(np.ones(3, np.float32))):
        expect(context, "of either kind", context.group.all_reduce(array), np.full(3, context.size, np.float32), like=array)


def refusals(context: Context) -> None:
    """What NCCL does not have is refused on every rank before anything is sent, and the group stays usable."""
    group = context.group
    small, bits = arrays.asarray(np.ones(3, np.int16)), arrays.asarray(np.ones(3, np.int32))
    calls = ((TypeError, "int16", lambda: group.all_reduce(small)), (TypeError, "band", lambda: group.all_reduce(bits, "band")),
             (ValueError, "tag", lambda: group.send(bits, 0, tag=1)), (ValueError, "source", lambda: group.recv(like=bits)))
    for kind, word, call in calls:
        context.raises(word, kind, word, call)
    expect(context, "after refusals", group.all_reduce(bits), np.full(3, context.size, np.int32))


def symmetric(context: Context) -> None:
    """Arrays of memory that is registered with NCCL: freed with the array, registered for the group's life at most."""
    with arrays.as_cupy() as kind:  # whose arrays may be written into
        for asks in (False, context.rank > 0):
            os.environ["ARRAYCOMM_NCCL_SYMMETRIC"] = str(int(asks))
            _unregistered(context, kind)
        os.environ["ARRAYCOMM_NCCL_SYMMETRIC"] = "1"
        _symmetric(context, kind)
    del os.environ["ARRAYCOMM_NCCL_SYMMETRIC"]


def _unregistered(context: Context, kind: type[arrays.Array]) -> None:
    """Unless all ranks ask for it: arrays of which ranks may use whatever part they like."""
    library = ctypes.CDLL(os.environ["ARRAYCOMM_NCCL_LIBRARY"])
    x = context.group.empty(8, "float32", like=arrays.asarray(np.ones(1), kind=kind))
    context.check(type(x) is kind and library.standin_nccl_registrations() == 0, "it is not registered")
    part = x[context.rank : context.rank + 3]
    part.fill(np.full(3, context.rank + 1))
    total = sum(range(1, context.size + 1))
    expect(context, "of parts that lie apart", context.group.all_reduce(part), np.full(3, total, np.float32))


def _gone(context: Context, address: int, *, used: bool = True) -> None:
    """The memory there is freed, soon. used: by operations, which the stand-in forgets when they have ended."""
    end = time.monotonic() + 20
    while arrays.cuda().tell("standin_reach", address, 1) and time.monotonic() < end:
        if used:
            arrays.asarray(np.ones(1))
        time.sleep(0.01)
    context.check(not arrays.cuda().tell("standin_reach", address, 1), "the memory goes with its array")


def _symmetric(context: Context, kind: type[arrays.Array]) -> None:
    group, library = context.group, ctypes.CDLL(os.environ["ARRAYCOMM_NCCL_LIBRARY"])
    like = arrays.asarray(np.ones(1, np.float64), kind=kind)
    with present(group.split(0)) as sub:
        _gone(context, _reduced_in_place(context, sub, like))
        context.check(library.standin_nccl_registrations() == 0, "and its registration")
        context.check(sub.empty(0, like=like).shape == (0,), "without elements")
        kept = sub.empty(5, "int32", like=like)
        sub.all_reduce(kept, async_op=True)
    context.check(library.standin_nccl_registrations() == 0, "registrations end with the group")
    expect(context, "memory that outlives its group", kept.fill(range(5)), np.arange(5, dtype=np.int32))
    context.raises("a closed group", arraycomm.Aborted, "closed", partial(sub.all_reduce, kept))
    address = kept.address
    del kept
    _gone(context, address)
    _full(context, like)
    expect(context, "after that", group.all_reduce(like), np.full(1, context.size, np.float64))


def _reduced_in_place(context: Context, sub: arraycomm.Group, like: arrays.Array) -> int:
    """Of different lengths on the ranks, which reduce a part. The address of what is dropped then."""
    library = ctypes.CDLL(os.environ["ARRAYCOMM_NCCL_LIBRARY"])
    shape = (2, 3 + context.rank % 2)
    x = sub.empty(shape, "float32", like=like)
    context.check((x.shape, x.dtype.name, type(x)) == (shape, "float32", type(like)), f"{x.shape}")
    context.check(library.standin_nccl_registrations() == 1, "it is registered")
    part = x[:1]
    part.fill(np.full(part.shape, context.rank + 1))
    total = sum(range(1, context.size + 1))
    for turn in range(2):
        y = sub.all_reduce(part[:, :3], out=part[:, :3] if turn else None)
        expect(context, f"of symmetric memory, turn {turn}", y, np.full((1, 3), total, np.float32))
    return int(x.address)


def _full(context: Context, like: arrays.Array) -> None:
    """The device's memory is full when an array goes, and when one is asked for."""
    last = context.group.empty(5, like=like)
    address = last.address
    arrays.cuda().tell("standin_fail", b"cudaMalloc", 1, 2)
    del last
    _gone(context, address, used=False)
    arrays.cuda().tell("standin_fail", b"", 0, 0)
    if context.rank == 0:
        ctypes.CDLL(os.environ["ARRAYCOMM_NCCL_LIBRARY"]).standin_nccl_fail(b"ncclMemAlloc", 1, 1)
    context.raises("no memory", arraycomm.ResourceError, "on the GPU of rank 0", lambda: context.group.empty(7, like=like))


def left_over(context: Context) -> None:
    """Groups that are closed leave no communicator and no operator of NCCL's."""
    library = ctypes.CDLL(os.environ["ARRAYCOMM_NCCL_LIBRARY"])
    counts = (ctypes.c_int * 2)()

    def count() -> tuple[int, int]:
        library.standin_nccl_counts(ctypes.byref(counts), ctypes.byref(counts, 4))
        return counts[0], counts[1]

    before = count()
    for _ in range(3):
        with present(context.group.split(0)) as sub:
            sub.all_reduce(arrays.asarray(np.ones(3, np.float32)), arraycomm.premul_sum(2.0))
    context.check(count() == before == (1, 0), f"communicators and operators: {before} before, {count()} afterwards")

"""Tasks: arrays on CUDA devices on a backend that moves host arrays. Over the stand-in for CUDA's runtime."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np

import arraycomm
from arraycomm.core.arrays.dlpack import give_back, resolve_out
from arraycomm.core.base.errors import CollectiveMismatch, CollectiveTimeout, DeviceError, DistError, PeerLost
from arraycomm.core.gpu import pieces, staged
from tests.standin import arrays

from .data import contents, reduced
from .expect import expect, given
from .worlds import Context


def piece_bytes(context: Context, nbytes: int) -> None:
    """Cuts arrays into pieces of so many bytes from now on."""
    pieces.PIECE_BYTES = nbytes


_Call = tuple[str, Callable[..., Any], Any]


def calls_on(context: Context, framework: str, count: int, dtype: str = "float32") -> tuple[Any, list[_Call]]:
    """An input, and every collective on it with what it must give."""
    group, size, me = context.group, context.size, context.rank
    inputs = [contents(dtype, (size * count,), rank, 61) for rank in range(size)]
    x = given(context, framework, inputs[me])
    part = slice(me * count, (me + 1) * count)
    uneven = [contents("int16", (count // 2 + rank, 3), rank, 62) for rank in range(size)]
    y = given(context, framework, uneven[me])
    shares = [size * count - (size - 1) * (count // 2)] + [count // 2] * (size - 1)
    share = slice(sum(shares[:me]), sum(shares[: me + 1]))
    total, root = reduced("sum", inputs), size - 1
    return x, [
        ("all_reduce", lambda **how: group.all_reduce(x, **how), total),
        ("reduce", lambda **how: group.reduce(x, root, **how), total if me == root else None),
        ("broadcast", lambda **how: group.broadcast(x, root, **how), inputs[root]),
        ("all_gather", lambda **how: group.all_gather(x, **how), np.concatenate(inputs)),
        ("uneven all_gather", lambda **how: group.all_gather(y, uneven=True, **how), np.concatenate(uneven)),
        ("gather", lambda **how: group.gather(x, root, **how), np.concatenate(inputs) if me == root else None),
        ("scatter", lambda **how: group.scatter(x if me == root else None, root, like=x[part], **how), inputs[root][part]),
        ("reduce_scatter", lambda **how: group.reduce_scatter(x, **how), total[part]),
        ("uneven reduce_scatter", lambda **how: group.reduce_scatter(x, counts=shares, **how), total[share]),
        ("all_to_all", lambda **how: group.all_to_all(x, **how), np.concatenate([a[part] for a in inputs])),
        ("uneven all_to_all", lambda **how: group.all_to_all(x, send_counts=shares, **how),
         np.concatenate([a[share] for a in inputs])),
    ]


def every_kind(context: Context, framework: str, counts: tuple[int, ...] = (1, 7, 100, 1000), *, later: bool = False) -> None:
    """Each collective on arrays of several pieces, which are written late. later: asynchronously, waited for in reverse."""
    for count in counts:
        carry_out(context, f"of {count} {framework}", *calls_on(context, framework, count), later=later)


def carry_out(context: Context, label: str, x: Any, calls: list[_Call], *, later: bool) -> None:
    started = [(name, call(async_op=True) if later else call(), want) for name, call, want in calls]
    for name, got, want in reversed(started):
        got = got.result(60) if later else got
        if want is None:
            context.check(got is None, f"{name}: {got!r} where nothing comes")
        else:
            expect(context, f"{name} {label} later={later}", got, want, like=x)


def order_of_calls(context: Context) -> None:
    """A later operation on an earlier one's out sees its result, whether anybody has waited for it or not."""
    x = given(context, "cuda", np.full(500, context.rank + 1.0, np.float32))
    works = [context.group.all_reduce(x, "max" if i else "sum", out=x, async_op=True) for i in range(4)]
    context.group.all_reduce(x, "min", out=x)
    total = context.size * (context.size + 1) / 2
    context.check((x.numpy() == total).all(), f"after four in place: {x.numpy()[:3]}, want {total}")
    for work in works:
        context.check(work.result(60) is x, "result of an operation with out")


def captures(context: Context) -> None:
    """Refused before anything is sent: the group goes on."""
    group, x = context.group, given(context, "cuda", np.ones(500, np.float32))
    y = given(context, "cupy", np.ones(500, np.float32))
    y.numpy()
    calls = {arrays.LEGACY: (lambda: group.all_reduce(x), lambda: group.send(x, 0), lambda: group.recv(0, like=x),
                             lambda: group.empty(3, like=x)),
             arrays.current_stream(): (lambda: group.all_reduce(y), lambda: group.all_gather(y, form="list"))}
    for stream, call in [(stream, call) for stream, some in calls.items() for call in some]:
        arrays.cuda().tell("standin_capture", stream)
        context.raises("a captured stream", DeviceError, "CUDA graph", call)
    arrays.cuda().tell("standin_capture", arrays.cuda().make("cudaStreamCreateWithFlags", 1))
    for later in (False, True):
        got = group.all_reduce(x, async_op=True).result(60) if later else group.all_reduce(x)
        context.check((got.numpy() == context.size).all(), f"while another stream is captured, later={later}")
    arrays.cuda().tell("standin_capture", 0)
    context.check((group.all_reduce(x).numpy() == context.size).all(), "after a capture")


def between(context: Context) -> None:
    """Operations on the host's arrays between asynchronous ones on a device's: one order for both."""
    group, kept = context.group, []
    for i in range(6):
        x = given(context, "cuda", np.full(400, float(i), np.float32))
        kept.append((i, group.all_reduce(x, async_op=True)))
        host = group.all_reduce(np.full(3, 10.0 + i))
        context.check((host == context.size * (10.0 + i)).all(), f"host array {i}")
    for i, work in kept:
        context.check((work.result(60).numpy() == context.size * i).all(), f"device array {i}")


def messages(context: Context) -> None:
    """Between devices, and between a device and the host."""
    group, size, me = context.group, context.size, context.rank
    right, left = (me + 1) % size, (me - 1) % size
    for count in (0, 1, 5000):
        mine, theirs = (contents("float32", (count,), rank, 63) for rank in (me, left))
        for give in ("cuda", "numpy"):
            for take in ("cuda", "frozen", "numpy"):
                work = group.isend(given(context, give, mine), right, 3)
                got = group.recv(left, 3, like=given(context, take, np.zeros_like(mine)))
                context.check((got.source, got.tag) == (left, 3), f"came from {got.source}, {got.tag}")
                expect(context, f"{count} from {give} to {take}", got.array, theirs)
                work.wait(60)
        with group.batch():
            group.send(given(context, "cuda", mine), right)
            pending: Any = group.recv(left, like=given(context, "cuda", mine))
        expect(context, f"batch of {count}", pending.result().array, theirs)


def split(context: Context) -> None:
    """Groups made before and after the first array on a device."""
    group = context.group
    halves = [group.split(context.rank % 2)]
    group.all_reduce(given(context, "cuda", np.ones(3, np.float32)))
    halves.append(group.split(context.rank % 2))
    for half in halves:
        assert half is not None
        with half:
            got = half.all_reduce(given(context, "cupy", np.ones(300, np.float32)))
            context.check((got.numpy() == half.size).all(), f"sum in a half: {got.numpy()[:3]}")
            half.barrier()


def two_backends(context: Context) -> None:
    """Host arrays go by MPI, arrays of a device by the socket engine, in this group and in those split off."""
    half: Any = context.group.split(0)
    with half:
        for group in (context.group, half):
            context.check(group.backend == "cpu:mpi,cuda:socket", group.backend)
            x = given(context, "cuda", np.ones(300, np.float32))
            with group.batch():
                group.send(x, (context.rank + 1) % context.size)
                got: Any = group.recv((context.rank - 1) % context.size, like=x)
            context.check((got.result().array.numpy() == 1).all(), "a batch")
            movers = [type(group._movers[1]).__name__, type(group._movers[2]).__name__, type(group._movers[2]._host).__name__]
            context.check(movers == ["MpiCommunicator", "Staged", "SocketCommunicator"], f"{movers}")
            group.check_peers()
            group.barrier()


def other_device(context: Context) -> None:
    """Ranks on different devices, none of them the current one, on which no context is made for that."""
    cuda, group, device = arrays.cuda(), context.group, (context.rank + 1) % 4
    give_back()  # what other tasks have left
    cuda.tell("standin_reset", 4)
    for kind in (arrays.Array, arrays.Frozen):
        x = arrays.asarray(np.full(300, 2.0, np.float32), device=device, kind=kind)
        works = [group.all_reduce(x, async_op=True), group.isend(x, context.rank), group.irecv(context.rank, like=x)]
        got = group.all_reduce(x)
        while not all(work.done() for work in works):
            pass
        works[0].wait(60)
        group.all_reduce(x, async_op=True)  # which nobody waits for
        gc.collect()
        used = cuda.tell("standin_contexts")
        context.check(used == 1 << device, f"contexts of {kind.__name__} on {device}: {used:b}")
        context.check(got.ordinal == device and (got.numpy() == 2 * context.size).all(), f"on device {got.ordinal}")
        cuda.tell("standin_reset", 4)
    group.barrier()
    arrays.cuda().tell("standin_reset", 1)


# ---- what goes wrong: every rank gets an error, nobody gets wrong numbers ----


def _alive() -> tuple[int, ...]:
    """Streams, events, blocks of pinned memory that no pool has."""
    gc.collect()
    give_back()
    memory, handles = (ctypes.c_long * 2)(), (ctypes.c_long * 2)()
    arrays.cuda().tell("standin_memory", memory)
    arrays.cuda().tell("standin_alive", handles)
    pooled = sum(len(free) for pool in staged._pools for free in pool._free.values())
    return (*handles, memory[1] - pooled)


def _empty_pools() -> None:
    for pool in staged._pools:
        for free in pool._free.values():
            while free:
                pool._cuda.free_host(free.pop())
        pool._kept = 0


def fails(context: Context, function: str, *, later: bool) -> None:
    """A call of CUDA's fails on the last rank, in every operation: the group is done with, and nothing is left of it."""
    cuda, last = arrays.cuda(), context.rank == context.size - 1
    whole = context.group.split(0)
    assert whole is not None
    names = [name for name, _, _ in calls_on(context, "cupy", 300)[1]]
    before, failed = _alive(), 0
    for nth in (1, 3):
        for index, name in enumerate(names):
            with cast(arraycomm.Group, whole.split(0)) as group:
                inner = Context(group)
                _, call, want = calls_on(inner, "cupy", 300)[1][index]
                _empty_pools()
                group.barrier()
                if last:
                    cuda.tell("standin_fail", function.encode(), nth, 999)
                got = caught = None
                try:
                    got = call(async_op=True).result(60) if later else call()
                except DistError as error:
                    caught = error
                cuda.tell("standin_fail", b"", 0, 0)
                label = f"{name}, {function} {nth}"
                if caught is not None:
                    failed += 1
                    says = str(caught)
                    expected = f"{name.removeprefix('uneven ')} of an array on GPU 0: CUDA failed to"
                    context.check(not last or (expected in says and ", 999)" in says), f"{label}: {says}")
                    context.raises(f"{label}: afterwards", DistError, "", partial(group.all_reduce, np.ones(3)))
                    caught = None  # its traceback holds pinned memory
                elif want is not None:
                    expect(context, label, got, want)
    left = _alive()
    context.check(left == before or "Destroy" in function, f"{function}: {left} is left, was {before}")
    context.check(failed > 0 or not last, f"{function} has never failed")
    whole.close()


def fails_later(context: Context, nth: int) -> None:
    """A copy fails when it is carried out: the rank hears of it, and its peers do."""
    cuda, group = arrays.cuda(), context.group
    x = given(context, "cuda", np.full(2000, 1.0, np.float32))
    group.all_reduce(x)
    if context.rank == 0:
        cuda.tell("standin_fail_later", nth, 719)
    caught = y = None
    try:
        y = group.all_reduce(x)
    except DistError as error:
        caught = error
    cuda.tell("standin_reset", 1)
    if context.rank == 0:
        context.check(caught is not None and "719" in str(caught), f"asynchronous error: {caught!r}")
    else:
        context.check(caught is not None or (y is not None and (y.numpy() == context.size).all()), "a peer of it")


def stuck(context: Context) -> None:
    """What the program enqueued before does not end: the operation's time does, and the copies keep their memory."""
    import threading

    go, group = threading.Event(), context.group
    x = given(context, "cuda", np.full(2000, 1.0, np.float32))
    group.all_reduce(x)
    if context.rank == 0:
        arrays.compute(lambda: go.wait(60), arrays.current_stream())
    try:
        group.all_reduce(x, timeout=0.5)
        context.check(False, "an operation that could not end has ended")
    except DistError as error:
        if context.rank == 0:
            context.check(isinstance(error, CollectiveTimeout) and "device 0" in str(error), f"stuck: {error!r}")
    del x
    go.set()
    arrays.cuda().call("cudaStreamSynchronize", arrays.current_stream())
    mover: Any = group._movers[2]
    lane = mover._lane(0)
    for stream in (lane.down, lane.up):  # what was left ends with both
        lane.cuda.synchronize(stream, lane.device)
    context.check(lane.reap(), "what was left is let go")


def late(context: Context) -> None:
    """A result that the device does not come to: who asks for it is told at once, and close() waits a moment only."""
    import threading

    cuda, patience = arrays.cuda(), mock.patch.object(staged, "PATIENCE", 0.2)
    patience.start()
    go, stream = threading.Event(), cuda.make("cudaStreamCreateWithFlags", 1)
    x, out = (given(context, "cupy", np.ones(500, np.float32)) for _ in range(2))
    out.numpy()
    with cast(arraycomm.Group, context.group.split(0)) as group:
        group.barrier()
        with arrays.use_stream(stream):
            to = resolve_out(out)
            arrays.compute(lambda: go.wait(60), stream)
        work = group.all_reduce(x, out=to, async_op=True)
        waits = threading.Thread(target=work.wait)
        waits.start()
        begun = time.monotonic()
        while time.monotonic() < begun + 0.1:
            context.check(not work.done(), "there is a result already")
        context.check(time.monotonic() < begun + 5, "done() has blocked")
        context.group.barrier()  # a rank that closes fails the others' works
        begun = time.monotonic()
        group.close()
        context.check(time.monotonic() < begun + 5, "close() has waited for the device")
    go.set()
    waits.join(20)
    patience.stop()
    context.check(not waits.is_alive() and work.done() and (out.numpy() == context.size).all(), "it came later")


def slow(context: Context, milliseconds: int = 20) -> None:
    """Copies that take long are waited for."""
    arrays.cuda().tell("standin_slow", milliseconds * 1_000_000)
    x = given(context, "cuda", np.full(700, 3.0, np.float32))
    got = context.group.all_reduce(x)
    context.check((got.numpy() == 3 * context.size).all(), f"slow copies: {got.numpy()[:3]}")
    arrays.cuda().tell("standin_reset", 1)


def forgotten(context: Context) -> None:
    """Works that nobody waits for hold their memory as long as they need it, and do not disturb those that follow."""
    for i in range(20):
        x = given(context, "cuda", np.full(900, float(i), np.float32))
        context.group.all_reduce(x, async_op=True)
        got = context.group.all_reduce(x)
        context.check((got.numpy() == i * context.size).all(), f"after a forgotten one: {got.numpy()[:3]}")
    x, kept = (given(context, "cuda", np.full(900, context.rank + 1.0, np.float32)) for _ in range(2))
    place = given(context, "cuda", np.zeros(900, np.float32))
    kept.numpy()
    context.group.all_reduce(x, out=x, async_op=True)  # the results come all the same
    if context.size > 1:
        context.group.irecv((context.rank - 1) % context.size, 5, out=place)
        context.group.send(kept, (context.rank + 1) % context.size, 5)
    wants = [(x, context.size * (context.size + 1) / 2)]
    wants += [(place, (context.rank - 1) % context.size + 1.0)] if context.size > 1 else []
    end = time.monotonic() + 30
    while not all((y.numpy() == want).all() for y, want in wants) and time.monotonic() < end:
        time.sleep(0.001)
    for y, want in wants:
        context.check((y.numpy() == want).all(), f"a forgotten result: {y.numpy()[:3]}, want {want}")


def mixed(context: Context) -> None:
    """One rank's array on a device, another's on the host, in one collective: refused on all ranks."""
    x = given(context, "cuda" if context.rank == 0 else "numpy", np.ones(5, np.float32))
    try:
        context.group.all_reduce(x)
        context.check(False, "arrays on device and host in one call were taken")
    except CollectiveMismatch as error:
        if context.rank == 0:
            context.check("all ranks' arrays must be on GPUs, or none" in str(error), str(error))
    except DistError as error:
        context.check(context.rank != 0, f"{error!r}")


def dies(rank: int, folder: str) -> None:
    """Spawned: one rank dies while 256 MiB are under way; how long it takes until the other one knows."""
    with arraycomm.init() as group:
        x = arrays.empty((64 << 20,), "float32")
        group.all_reduce(arrays.asarray(np.ones(3, np.float32)))
        mover: Any = group._movers[2]
        host, died = mover._host, Path(folder, "died")

        class Host:
            calls = 0

            def __getattr__(self, name: str) -> Any:
                return getattr(host, name)

            def collective(self, *given: Any, **how: Any) -> Any:
                self.calls += 1
                if rank == 1 and self.calls == 20:
                    died.write_text(repr(time.time()))
                    os._exit(0)  # as suddenly as by a signal, but nothing that the parent would end the other one for
                return host.collective(*given, **how)

        mover._host = Host()
        try:
            group.all_reduce(x, out=x)
        except PeerLost as error:
            took = time.time() - float(died.read_text())
            Path(folder, "survivor").write_text("well" if took < 1 and error.ranks == (1,) else f"{took} s: {error!r}")

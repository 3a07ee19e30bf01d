"""What the ranks of faulty jobs do. Every function is a task for job.py: called with the rank's context and parameters."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import arraycomm
from arraycomm.core.group.window import Window
from tests.present import present

from ..threads import at_once
from .job import Context, Holdings, settled


def open_group(context: Context, **arguments: Any) -> None:
    context.before = Holdings.now()
    context.group = arraycomm.init(**arguments)


def close_group(context: Context) -> tuple[Holdings, Holdings, float]:
    """What was held before the group was opened, what is held after it was closed, and how long closing took."""
    assert context.before is not None
    group, context.group = context.world, None
    started = time.monotonic()
    group.close()
    took = time.monotonic() - started
    del group
    return context.before, settled(context.before), took


def close_twice(context: Context) -> None:
    context.world.close()
    context.world.close()
    try:
        context.world.barrier()
    except arraycomm.Aborted as error:
        assert "is closed" in str(error)
    else:
        raise ValueError("a closed group was used")


def sockets(context: Context) -> int:
    return sum(kind == "socket:" for kind in Holdings.now().descriptors)


# ---- operations with results that are known ----


def _check(condition: object, label: str) -> None:
    if not condition:
        raise ValueError(f"wrong result: {label}")


def _sum(group: arraycomm.Group, count: int, turn: int) -> None:
    x = np.arange(count, dtype=np.int64) + group.rank + turn
    n = group.size
    y = group.all_reduce(x)
    _check(np.array_equal(y, n * (np.arange(count) + turn) + n * (n - 1) // 2), f"all_reduce of {count}")


def _gather(group: arraycomm.Group, count: int, turn: int) -> None:
    y = group.all_gather(np.full(count, 1000 * turn + group.rank), form="stack")
    _check(all((y[r] == 1000 * turn + r).all() for r in range(group.size)), f"all_gather of {count}")


def _broadcast(group: arraycomm.Group, count: int, turn: int) -> None:
    root = turn % group.size
    y = group.broadcast(np.full(count, group.rank * 1000 + turn), root)
    _check((y == root * 1000 + turn).all(), f"broadcast of {count}")


def _reduce_scatter(group: arraycomm.Group, count: int, turn: int) -> None:
    y = group.reduce_scatter(np.arange(count * group.size) + turn)
    part = np.arange(count) + group.rank * count + turn
    _check(np.array_equal(y, part * group.size), f"reduce_scatter of {count}")


def _exchange(group: arraycomm.Group, count: int, turn: int) -> None:
    x = np.repeat(np.arange(group.size) + 100 * group.rank + turn, count)
    y = group.all_to_all(x)
    want = np.repeat(group.rank + 100 * np.arange(group.size) + turn, count)
    _check(np.array_equal(y, want), f"all_to_all of {count}")


def _barrier(group: arraycomm.Group, count: int, turn: int) -> None:
    group.barrier()


def _ring(group: arraycomm.Group, count: int, turn: int) -> None:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    work = group.isend(np.full(count, group.rank + turn), right, tag=turn % 3)
    got = group.recv(left, turn % 3, like=np.empty(count, np.int64))
    work.wait()
    _check(got.source == left and (got.array == left + turn).all(), f"send and recv of {count}")


COLLECTIVES = (_sum, _gather, _broadcast, _reduce_scatter, _exchange, _barrier)
OPERATIONS: dict[str, tuple[Callable[[arraycomm.Group, int, int], None], ...]] = {
    "collectives": COLLECTIVES, "messages": (_ring,), "mixed": (*COLLECTIVES, _ring),
}
COUNTS = (1, 64, 5000, 200_000)  # int64: from 8 B to 1.6 MB, through every algorithm of the table


def cycle(context: Context, turns: int = 1, *, what: str = "mixed", counts: tuple[int, ...] = COUNTS) -> None:
    """Every operation, `turns` times, checked."""
    for turn in range(turns):
        for count in counts:
            for operation in OPERATIONS[what]:
                operation(context.world, count, turn)


def cycle_forever(context: Context, *, what: str = "mixed", counts: tuple[int, ...] = COUNTS) -> None:
    """Until an error ends it. Says once that the first turn is over. Leaves the group as a `with` would at Ctrl-C."""
    cycle(context, what=what, counts=counts)
    try:
        context.say()  # here, so that an interrupt just behind it leaves the group too
        for turn in itertools.count(1):
            for count in counts:
                for operation in OPERATIONS[what]:
                    operation(context.world, count, turn)
    except KeyboardInterrupt as error:
        error.at = time.monotonic()  # type: ignore[attr-defined]
        context.world.close(type(error).__name__)
        raise


def exchange_forever(context: Context, count: int) -> None:
    """all_to_all of the same arrays until an error ends it. Says once that the first is over."""
    x = np.arange(count * context.world.size)
    out = np.empty_like(x)
    context.world.all_to_all(x, out=out)
    context.say()
    while True:
        context.world.all_to_all(x, out=out)


def cycle_for(context: Context, seconds: float) -> int:
    """For about `seconds`, equally often on all ranks. How often."""
    end, turn = time.monotonic() + seconds, 0
    while context.world.broadcast(np.array([time.monotonic() < end]))[0]:
        cycle(context, counts=(1, 5000))
        turn += 1
    return turn


def total(context: Context, count: int = 1000, timeout: float | None = None) -> float:
    return float(context.world.all_reduce(np.ones(count), timeout=timeout).sum() / count)


def try_again(context: Context) -> float:
    """After a failure: how long the next operation takes to raise its error; it has to."""
    started = time.monotonic()
    try:
        context.world.all_reduce(np.ones(1))
    except arraycomm.DistError:
        return time.monotonic() - started
    raise ValueError("an operation on a group that has failed did not raise")


# ---- going on without the lost ----


def announced_subgroup(context: Context, members: list[int]) -> None:
    context.say()
    context.world.subgroup(members, "part")


_parts: dict[str, arraycomm.Group] = {}
_X = np.ones(4)
_USES: dict[str, Callable[[arraycomm.Group], Any]] = {  # of an inner group each: what raises ends it
    "barrier": lambda group: group.barrier(),
    "all_reduce": lambda group: group.all_reduce(_X),
    "uneven all_gather": lambda group: group.all_gather(_X, uneven=True),
    "asynchronous": lambda group: group.all_reduce(_X, async_op=True).result(),
    "broadcast": lambda group: group.broadcast(_X, 2),
    "objects": lambda group: group.all_gather_object("x"),
    "recv": lambda group: group.recv(2, like=_X),
    "recv of any": lambda group: group.recv(like=_X),
    "irecv": lambda group: group.irecv(2, like=_X).result(),
    "strided": lambda group: group.all_reduce(np.ones((4, 4))[:, 1]),
    "split": lambda group: group.split(0),
    "gradients": lambda group: arraycomm.GradientReducer(group, [_X]),
    "check_peers": lambda group: group.check_peers(),
}


def make_parts(context: Context, outer: list[int], inner: list[int]) -> None:
    """inner: ranks of the outer group, for a group for each of _USES."""
    whole = _parts["outer"] = present(context.world.split(0, outer.index(context.world.rank)))
    if whole.rank in inner:
        for name in _USES:
            _parts[name] = whole.subgroup(inner, name)
        _parts["window"] = _parts["barrier"].subgroup(range(3), "for a window")
        _windows.append(Window(_parts["window"], np.zeros(4), "window"))


_windows: list[Window] = []


def _lost(use: Callable[[], Any]) -> Any:
    """The error's two numbers of the lost rank."""
    try:
        use()
    except arraycomm.PeerLost as error:
        again = pickle.loads(pickle.dumps(error))
        _check((again.ranks, again.world_ranks) == (error.ranks, error.world_ranks), "pickled")
        _check(f"rank {error.ranks[0]}" in str(error), f"text {error}")
        return [error.ranks, error.world_ranks]
    return None


def lost_of_parts(context: Context) -> dict[str, Any]:
    found = {name: _lost(functools.partial(use, _parts[name])) for name, use in _USES.items()}
    found["window"] = _lost(lambda: _windows[0].wait_signal(2, 60.0))
    found["outer"] = _lost(_parts["outer"].barrier)
    found["peers of outer"] = _lost(_parts["outer"].check_peers)
    return found


def split_outer(context: Context) -> Any:
    """The group is split into world ranks 0 and 3, and 1 and 2."""
    return _lost(lambda: _parts["outer"].split(int(context.world.rank in (1, 2))))


def die_in_split(context: Context) -> None:
    _parts["outer"].subgroup = lambda *given, **named: os._exit(9)  # type: ignore[method-assign]
    split_outer(context)


# ---- waiting for others ----


def broadcast_forever(context: Context, root: int) -> None:
    """Until an error ends it: the root runs ahead until no slot is left."""
    context.say()
    for turn in itertools.count():
        y = context.world.broadcast(np.full(4, turn if context.world.rank == root else -1), root)
        _check((y == turn).all(), f"broadcast {turn}: {y}")


def broadcast_and_close(context: Context) -> None:
    """Of a root: nobody else has come when it closes."""
    world = context.world
    world.broadcast(np.ones(4), world.rank)
    context.say()
    world.close()


def broadcasts(context: Context, count: int, root: int = 0) -> None:
    """So many, after which the root runs ahead."""
    for turn in range(count):
        y = context.world.broadcast(np.full(4, turn if context.world.rank == root else -1), root)
        _check((y == turn).all(), f"broadcast {turn}: {y}")


def announced_total(context: Context, timeout: float | None = None) -> float:
    """Says that it is about to block."""
    context.say()
    return total(context, timeout=timeout)


def announced_recv(context: Context, source: int | None, timeout: float | None = None) -> Any:
    context.say()
    return context.world.recv(source, like=np.zeros(4), timeout=timeout).array.tolist()


def announced_wait(context: Context) -> None:
    """As announced_total, over the worker."""
    work = context.world.all_reduce(np.ones(10), async_op=True)
    context.say()
    work.wait()


def send(context: Context, dest: int) -> None:
    context.world.send(np.ones(4), dest)


def send_and_die(context: Context, dest: int, count: int) -> None:
    """Killed as soon as the message is announced."""
    context.world.isend(np.ones(count), dest)
    os.kill(os.getpid(), signal.SIGKILL)


def receive_long(context: Context, source: int, count: int) -> float:
    return float(context.world.recv(source, like=np.zeros(count)).array.sum())


def send_with_timeout(context: Context, dest: int, count: int, timeout: float) -> None:
    """Spoils its array as soon as it has it back."""
    x = np.ones(count)
    try:
        context.world.send(x, dest, timeout=timeout)
    finally:
        x[...] = 7


def pause(context: Context, seconds: float = 0.0) -> None:
    """Nothing: the rank is alive, and outside of every operation."""
    time.sleep(seconds)


# ---- leaving ----


class Mishap(Exception):
    """A user's error, to be found in the peers' messages."""


def leave(context: Context, how: str) -> None:
    """Ends this process, or its part in the group."""
    group = context.world
    if how == "close":
        group.close()
    elif how == "os._exit":
        os._exit(7)
    elif how == "exception":
        with contextlib.suppress(Mishap), group:
            raise Mishap("of the user's")
    else:
        raise AssertionError(how)


# ---- interrupts ----


def abort_from_thread(context: Context, wait_in: str) -> dict[str, float]:
    """A waiter in this thread, abort() from another: when that was called, and when this one was free again."""
    called: list[float] = []

    def abort() -> None:
        time.sleep(0.2)
        called.append(time.monotonic())
        context.world.abort("enough")

    thread = threading.Thread(target=abort)
    thread.start()
    try:
        if wait_in == "recv":
            context.world.recv(1, like=np.zeros(1))
        elif wait_in == "work":
            context.world.all_reduce(np.ones(1000), async_op=True).wait()
        else:
            context.world.all_reduce(np.ones(1000))
    except arraycomm.Aborted as error:
        freed = time.monotonic()
        assert "enough" in str(error), error
        return {"called": called[0], "freed": freed}
    finally:
        thread.join()
    raise ValueError("the wait ended without an error")


def hold_gil(context: Context, seconds: float) -> float:
    """Python code that gives the GIL to no other thread. How long that lasted."""
    old = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    started = time.monotonic()
    try:
        numbers = list(range(300_000))
        while time.monotonic() - started < seconds:
            sorted(numbers, key=lambda n: n * 7919 % 300_007)
    finally:
        sys.setswitchinterval(old)
    return time.monotonic() - started


def interrupt_storm(context: Context, seconds: float) -> int:
    """All operations under a timer signal at 1 kHz, with a handler that raises nothing. How often it ran."""
    ran = 0

    def count(number: int, frame: Any) -> None:
        nonlocal ran
        ran += 1

    before = signal.signal(signal.SIGALRM, count)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        cycle_for(context, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return ran


# ---- fork, threads ----


def use_after_fork(context: Context) -> str:
    """What a child made by fork gets when it uses the group. It ends itself; its parent's group lives on."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            context.world.all_reduce(np.ones(3))
            text = "no error"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def two_threads(context: Context, turns: int) -> int:
    """Two threads on one group at once. The same operation in both, so that any order of them is right; how many wrong."""

    def work(_: int) -> int:
        results = (context.world.all_reduce(np.full(500, context.rank + 1.0)) for _ in range(turns))
        return sum(bool((y != context.size * (context.size + 1) / 2).any()) for y in results)

    return sum(at_once(2, work))


# ---- groups of subsets ----


def split_off(context: Context, members: list[int]) -> None:
    """context.group becomes the group of these; the world stays open as long as it lives."""
    child = context.world.split(0 if context.rank in members else None)
    if child is not None:
        context.group = child


def listening(context: Context) -> tuple[list[tuple[str, int]], str]:
    """TCP addresses and the path of the Unix socket that this rank listens on."""
    communicator: Any = context.world._communicator
    card = communicator._endpoint.peers[communicator._endpoint.rank]
    return list(card.addresses), card.path

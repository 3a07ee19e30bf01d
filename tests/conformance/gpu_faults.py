"""Tasks: what goes wrong in groups on GPUs. Each in a group of its own, split off the world's, which stays well."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

import arraycomm
from tests.standin import arrays

from .worlds import Context

_SYSTEM_ERROR, _REMOTE_ERROR = 2, 6
_SOON = 2.0  # s; told within one, on a busy machine
_OPENING = 8.0  # s; a rank that cannot fetch the others' memory tries again for a while
_LONG = 20.0
_AT_ONCE = 0.05


def tell(name: str, *arguments: Any) -> None:
    """The stand-in for NCCL."""
    getattr(ctypes.CDLL(os.environ["ARRAYCOMM_NCCL_LIBRARY"]), f"standin_nccl_{name}")(*arguments)


def ones(count: int = 8) -> arrays.Array:
    return arrays.asarray(np.ones(count, np.float32))


@contextmanager
def broken_group(context: Context) -> Iterator[arraycomm.Group]:
    """A group that the task breaks; all ranks have seen enough when it ends."""
    group = context.group.split(0)
    assert group is not None
    context.group.barrier()  # all have it
    try:
        yield group
    finally:
        context.group.barrier()
        group.close("Broken")
        tell("slow", ctypes.c_long(0))


def _waited(works: Iterable[arraycomm.Work[Any]]) -> None:
    for work in works:
        work.wait(_LONG)


def raises(context: Context, label: str, call: Callable[[], object], kinds: tuple[type[BaseException], ...], *words: str,
           within: float = _SOON) -> None:
    took = _raises(context, label, call, kinds, words)
    context.check(took < within, f"{label}: after {took:.2f} s")


def raises_at_once(context: Context, label: str, call: Callable[[], object], kinds: tuple[type[BaseException], ...]) -> None:
    """Whenever it is called. The fastest of some tries counts: on a busy machine a rank may have to wait for its turn."""
    took = min(_raises(context, label, call, kinds, ()) for _ in range(5))
    context.check(took < _AT_ONCE, f"{label}: after {took:.2f} s")


def _raises(context: Context, label: str, call: Callable[[], object], kinds: tuple[type[BaseException], ...],
            words: tuple[str, ...]) -> float:
    begin = time.monotonic()
    context.raises(label, kinds, "".join(f"(?=.*{re.escape(word)})" for word in words), call)
    return time.monotonic() - begin


_ENDS = (arraycomm.Aborted, arraycomm.PeerLost)


def failed_call(context: Context, function: str) -> None:
    """On rank 0 a call of NCCL fails: an error that names it there, Aborted for all who wait, and for every later call."""
    with broken_group(context) as group:
        if context.rank == 0:
            if function == "ncclCommGetAsyncError":  # asked by who watches, while something is under way
                tell("slow", ctypes.c_long(200_000_000))
            tell("fail", function.encode(), 1, _SYSTEM_ERROR)
            raises(context, function, lambda: _call(group, function).wait(_LONG), (arraycomm.DistBackendError,),
                   "rank 0 of ", "unhandled system error", "was told to fail")
            raises_at_once(context, f"after {function}", lambda: group.all_reduce(ones()), (arraycomm.DistBackendError,))
        else:
            raises(context, f"a peer of {function}", lambda: _call(group, function).wait(_LONG), _ENDS)
            raises_at_once(context, f"a peer after {function}", lambda: group.all_reduce(ones()), _ENDS)


def _call(group: arraycomm.Group, function: str) -> Any:
    if function == "ncclRedOpCreatePreMulSum":
        return group.all_reduce(ones(), arraycomm.premul_sum(2.0), async_op=True)
    if function == "ncclBroadcast":
        return group.broadcast(ones(), async_op=True)
    if function == "ncclGroupEnd":
        return group.all_to_all(ones(group.size), send_counts=[1] * group.size, recv_counts=[1] * group.size, async_op=True)
    return group.all_reduce(ones(), async_op=True)


def failed_opening(context: Context, function: str, rank: int) -> None:
    """A communicator that cannot be made is an error on all ranks, soon."""
    kinds = (arraycomm.DistBackendError,) if context.rank == rank else (arraycomm.DistError,)
    members, name = list(range(context.size)), f"{function} {rank}"
    with broken_group(context) as group:
        if context.rank == rank:
            tell("fail", function.encode(), 1, _SYSTEM_ERROR)
        raises(context, name, lambda: group.subgroup(members, name), kinds, within=_OPENING)
        with group.subgroup(members, f"{name} again") as again:  # it does not meet what is left of that one
            context.check((again.all_reduce(ones()).numpy() == context.size).all(), "a split after one that failed")
        context.check((group.all_reduce(ones()).numpy() == context.size).all(), "the group itself")


def failed_batch(context: Context) -> None:
    """A call that fails inside a batch, and one that is refused there: what came before it ends as well as it can."""
    group = context.group
    try:
        with group.batch():
            work = group.all_reduce(ones(), async_op=True)
            group.all_reduce(arrays.asarray(np.ones(3, np.int16)), async_op=True)
    except TypeError:
        context.check((work.result().numpy() == context.size).all(), "what was called before the refusal")
    with broken_group(context) as broken:
        if context.rank == 0:
            tell("fail", b"ncclAllReduce", 2, _SYSTEM_ERROR)

        def batch() -> None:
            with broken.batch():
                works = [broken.all_reduce(ones(), async_op=True) for _ in range(3)]
            for work in works:
                work.wait(_LONG)

        raises(context, "in a batch", batch, (arraycomm.DistBackendError,) if context.rank == 0 else _ENDS)
        raises_at_once(context, "after it", lambda: broken.all_reduce(ones()), (arraycomm.DistError,))


def no_memory(context: Context) -> None:
    """CUDA has no memory for an event on one rank: its peers, who wait for it, hear of that."""
    with broken_group(context) as group, arrays.as_cupy() as kind:  # whose arrays are read without an event of their own
        if context.rank == 0:
            x = arrays.asarray(np.ones(8, np.float32), kind=kind)
            arrays.cuda().tell("standin_fail", b"cudaEventCreateWithFlags", 1, 2)
            raises(context, "no event", lambda: group.all_reduce(x), (arraycomm.ResourceError,), "out of memory")
            raises_at_once(context, "after it", lambda: group.all_reduce(ones()), (arraycomm.ResourceError,))
        else:
            raises(context, "a peer without memory",  # the first one that rank 0 has not enqueued
                   lambda: _waited(group.all_reduce(ones(), async_op=True) for _ in range(2)), _ENDS)


def too_slow(context: Context) -> None:
    """An operation that does not end within its timeout ends with CollectiveTimeout, here or on a peer."""
    with broken_group(context) as group:
        tell("slow", ctypes.c_long(30_000_000_000))
        begin = time.monotonic()
        work = group.all_reduce(ones(), async_op=True, timeout=0.5)
        work.wait()  # orders streams, and does not block
        context.check(time.monotonic() - begin < 0.3, "wait() without a timeout blocked")
        raises(context, "wait(0.1)", lambda: work.wait(0.1), (TimeoutError,), "has not ended within 0.1 s")
        raises(context, "slow", lambda: work.wait(_LONG), (arraycomm.CollectiveTimeout, *_ENDS), "all_reduce")
        context.check(work.done(), "it has ended")


def stuck(context: Context) -> None:
    """A call of NCCL's that does not return, as the first operation where a peer does not come, is ended by its timeout."""
    with broken_group(context) as group:
        if context.rank == 0:
            tell("block", 1)
            raises(context, "stuck", lambda: group.all_reduce(ones(), timeout=0.3), (arraycomm.CollectiveTimeout,),
                   "rank 0 of", "all_reduce")
        else:
            raises(context, "a peer that is stuck", lambda: group.all_reduce(ones(), async_op=True).wait(_LONG), _ENDS)


def never_comes(context: Context) -> None:
    """Rank 0 does not take part, and aborts after a while."""
    with broken_group(context) as group:
        if context.rank == 0:
            time.sleep(0.3)  # the others are inside; they may also come later
            group.abort("no more of this")
            raises(context, "own call", lambda: group.all_reduce(ones()), (arraycomm.Aborted,), "no more of this")
        else:
            raises(context, "abort of a peer", lambda: group.all_reduce(ones(), async_op=True).wait(_LONG), (arraycomm.Aborted,),
                   "rank 0", "no more of this")


def asynchronous_error(context: Context) -> None:
    """What NCCL tells by ncclCommGetAsyncError."""
    with broken_group(context) as group:
        if context.rank == 0:
            tell("fail_later", 1, _REMOTE_ERROR)
        with suppress(arraycomm.DistError):  # who watches may see it, and tell the peers, before this has ended
            group.all_reduce(ones(), async_op=True).wait(_LONG)
        context.group.barrier()
        if context.rank == 0:  # a communicator that does not block may tell it while the call itself is in progress
            blocks = os.environ["NCCL_COMM_BLOCKING"] == "1"
            raises(context, "error", lambda: group.all_reduce(ones()), (arraycomm.PeerLost,), "ncclRemoteError",
                   f"rank 0 of {context.size}", "all_reduce" + ", the oldest operation under way, failed" * blocks)
        else:
            raises(context, "peer's error", lambda: group.all_reduce(ones(), async_op=True).wait(_LONG), _ENDS)


def broken_device(context: Context) -> None:
    """CUDA fails on one rank, and with it every later call there: its peers hear of it, and the group can be closed."""
    with broken_group(context) as group:
        if context.rank == 0:
            tell("slow", ctypes.c_long(200_000_000))
            works = [group.all_reduce(ones(), async_op=True) for _ in range(3)]
            _break_device()
            end = time.monotonic() + 10
            while not all([work.done() for work in works]) and time.monotonic() < end:
                time.sleep(0.001)
            context.check(all(work.done() for work in works), "done() does not raise, and sees the end")
            raises(context, "a broken device", lambda: _waited(works), (arraycomm.DistBackendError,), "719")
            context.group.barrier()  # the peers know
            group.close("Broken")
            arrays.cuda().tell("standin_reset", 1)
        else:
            raises(context, "a peer's device",
                   lambda: _waited(group.all_reduce(ones(), async_op=True) for _ in range(4)), _ENDS)
            context.group.barrier()


def _break_device() -> None:
    """By a copy that fails when it is carried out."""
    cuda, x = arrays.cuda(), ones()
    pinned = cuda.make("cudaHostAlloc", 32, 1)
    cuda.tell("standin_fail_later", 1, 719)
    cuda.call("cudaMemcpyAsync", pinned, x.address, 32, 2, arrays.current_stream())
    with suppress(RuntimeError):  # the error
        cuda.call("cudaStreamSynchronize", arrays.current_stream())


def enqueued_meanwhile(context: Context) -> None:
    """The thread that watches sees a failure while a call is enqueueing: what that enqueues has failed too, whatever its event
    says later. Rank 0 does not take part, so nothing can end by itself."""
    with broken_group(context) as group:
        communicator: Any = group._communicator
        enqueued = communicator._flight.enqueued

        def late(*arguments: Any) -> None:
            watcher = threading.Thread(target=communicator.broken, args=(arraycomm.PeerLost("seen just now"),))
            watcher.start()
            watcher.join()
            enqueued(*arguments)

        if context.rank == 1:
            communicator._flight.enqueued = late
        if context.rank > 0:
            raises(context, "a failure", lambda: group.all_reduce(ones(), async_op=True).wait(_LONG), _ENDS,
                   "seen just now")


def closed_meanwhile(context: Context) -> None:
    """close() ends what is under way; the memory of it is given back."""
    group = context.group.split(0)
    assert group is not None
    if context.rank == 0:
        context.group.barrier()
        group.close("Interrupted")
    else:
        work = group.all_reduce(ones(), async_op=True)
        context.group.barrier()
        raises(context, "a peer that leaves", lambda: work.wait(_LONG), _ENDS)
        group.close()
        raises(context, "a closed group", lambda: group.all_reduce(ones()), _ENDS)
    context.group.barrier()


def die(rank: int, folder: str) -> None:
    """A rank of a world of its own. The last one is killed; the others get PeerLost, and go on in a group of their own."""
    group = arraycomm.init(timeout=_LONG)
    context, last = Context(group), group.size - 1
    group.all_reduce(ones()).numpy()
    group.barrier()
    if rank == last:
        time.sleep(0.05)
        os._exit(0)
    if rank == 0:  # NCCL notices first, and does not know who it is
        tell("fail", b"ncclCommGetAsyncError", 1, _REMOTE_ERROR)
    raises(context, "a rank was killed", lambda: group.all_reduce(ones(), async_op=True).wait(_LONG), (arraycomm.PeerLost,),
           f"rank {last}", "process died")
    with group.subgroup(list(range(last)), "survivors") as rest:
        got = rest.all_reduce(ones()).numpy()
    context.check((got == last).all(), f"the survivors' sum is {got}")
    group.close("PeerLost")
    with open(os.path.join(folder, str(rank)), "w") as file:
        file.write("\n".join(context.failures) or "well")

"""Windows: arrays of every rank that the others read and write without the owner's taking part.

A window has a group of its own, whose messages go by memory inside a host and by TCP between hosts. A thread of each rank, the
*agent*, receives what the others ask for and does it to this rank's array; so accumulate is atomic, and operations of one rank
on one target take effect in their order. A request is a header (tag 0) and, for put and accumulate, its elements (tag 1).
What get asks for comes back under a tag of that request's own.
"""

from __future__ import annotations

import array
import itertools
import threading
import time
from collections.abc import Callable

from . import arguments, threads
from .buffer import Buffer
from .dlpack import allocate, resolve, resolve_out
from .errors import Aborted, CollectiveTimeout, DeviceError, GroupError
from .exchange import gather_integers
from .group import Group
from .joined import flat
from .local import reduce_into
from .types import DeviceType, DType

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

PUT, GET, ACCUMULATE, SIGNAL, FENCE, STOP = range(6)
REDUCTIONS = ("sum", "product", "min", "max", "band", "bor", "bxor")
_HEADERS, _ELEMENTS, _ANSWERS = range(3)  # tags; answers have this one and those above
_FOREVER = 4e9  # s that the agent waits for requests


class Window:
    """One rank's end. Made by all ranks of the group together; closed by all together, or with the group.

    Attributes: counts (elements of every rank's array), dtype, buffer (this rank's array).
    Errors: ValueError for another dtype and a rank that there is not, RuntimeError for elements beyond the target's array, both
    before anything is sent; then what messages raise.
    """

    def __init__(self, group: Group, x: Any, name: str, timeout: float | None = None) -> None:
        """x: contiguous and writable host memory; of one dtype on all ranks, of any size. name: of no other subgroup."""
        self.buffer = flat(resolve_out(x))
        if self.buffer.device_type != DeviceType.CPU:
            raise DeviceError("a window's array lies in host memory; arrays on a device can be put into it and got from it")
        self.dtype = self.buffer.dtype
        told = gather_integers(group._communicator, [self.buffer.count, self.dtype], timeout)
        self.counts = [count for count, _ in told]
        for rank, (_, dtype) in enumerate(told):
            if dtype != told[0][1]:
                raise ValueError(f"a window has one dtype on all ranks: rank 0 gives {DType(told[0][1]).label} and rank {rank} "
                                 f"{DType(dtype).label}")
        self._group = group.subgroup(range(group.size), name)
        self._requests, self._fences = itertools.count(), 0
        self._sending = threading.Lock()  # a header and its elements go one after the other
        self._came = threading.Condition()
        self._signals, self._fenced = [0] * group.size, [0] * group.size  # by rank: signals to be waited for; fences reached
        self._failure: GroupError | None = None
        self._agent = threading.Thread(target=self._serve, name=f"arraycomm window {name}", daemon=True)
        threads.start(self._agent)

    # ---- what this rank asks of others: each gives the pending operations, to be waited for ----

    def put(self, x: Any, rank: int, offset: int) -> list[Any]:
        """Writes x's elements into the target's array. Ended: x may be changed again."""
        return self._give(PUT, x, rank, offset, 0)

    def accumulate(self, x: Any, rank: int, offset: int, op: str) -> list[Any]:
        """As put, but each element becomes op(what is there, x's). Atomic among accumulates. Of REDUCTIONS."""
        if op not in REDUCTIONS:
            raise ValueError(f"accumulate takes one of {', '.join(REDUCTIONS)}, got {op!r}")
        arguments.reduction(op, self.dtype)
        return self._give(ACCUMULATE, x, rank, offset, REDUCTIONS.index(op))

    def get(self, out: Any, rank: int, offset: int) -> list[Any]:
        """Reads elements of the target's array into out. Ended: they are there."""
        to = flat(resolve_out(out))
        self._check(to, rank, offset)
        request = next(self._requests)
        pending = self._group.irecv(to, rank, _ANSWERS + request, out=to)
        return [pending, self._ask(rank, GET, offset, to.count, request)]

    def signal(self, rank: int) -> list[Any]:
        """One more signal at the target, after everything that this rank asked of it before."""
        self.check_rank(rank)
        return [self._ask(rank, SIGNAL)]

    def wait_signal(self, rank: int, timeout: float) -> bool:
        """Takes one signal of that rank, and waits for it (seconds). Whether it came in time."""
        return self._wait(lambda: self.take_signal(rank), timeout)

    def no_signal(self, rank: int) -> CollectiveTimeout:
        """The error of who waited in vain."""
        return CollectiveTimeout(f"no signal of rank {rank} came in time to window {self._group.name!r} of rank "
                                 f"{self._group.rank}", ranks=(rank,))

    def take_signal(self, rank: int) -> bool:
        """Takes one signal of that rank if it is there. Raises the window's failure otherwise, if it has failed."""
        with self._came:
            if self._signals[rank]:
                self._signals[rank] -= 1
                return True
            if self._failure is not None:
                raise self._failure
            return False

    def fence(self, timeout: float) -> None:
        """All ranks call it. Returns when everything that any of them asked of this rank before has taken effect."""
        self._fences += 1
        epoch = self._fences
        for work in [self._ask(rank, FENCE) for rank in range(self._group.size)]:
            work.wait()
        if not self._wait(lambda: self._behind(epoch) is None, timeout):
            late = self._behind(epoch)
            raise CollectiveTimeout(f"rank {late} has not come to the fence of window {self._group.name!r} within {timeout} s",
                                    ranks=() if late is None else (late,))

    def close(self) -> None:
        """All ranks call it: nothing is under way afterwards, and the array is the caller's alone. After a failure it does
        not wait for the others. Idempotent."""
        if self._group.closed:
            return
        try:
            if self._failure is None:
                self.fence(self._group.timeout)
                self._ask(self._group.rank, STOP).wait()
                self._agent.join()
                self._group.barrier()
        finally:
            self._group.close()
            self._agent.join()

    @property
    def closed(self) -> bool:
        return self._group.closed

    def _give(self, kind: int, x: Any, rank: int, offset: int, op: int) -> list[Any]:
        source = flat(resolve(x))
        self._check(source, rank, offset)
        with self._sending:
            return [self._ask(rank, kind, offset, source.count, op), self._group.isend(source, rank, _ELEMENTS)]

    def _ask(self, rank: int, kind: int, *details: int) -> Any:
        return self._group.isend(array.array("q", [kind, *details, *[0] * (3 - len(details))]), rank, _HEADERS)

    def _check(self, buffer: Buffer, rank: int, offset: int) -> None:
        self.check_rank(rank)
        if buffer.dtype != self.dtype:
            raise ValueError(f"the window's dtype is {DType(self.dtype).label}, the array's {DType(buffer.dtype).label}")
        arguments.integer("offset", offset)
        if offset < 0 or offset + buffer.count > self.counts[rank]:
            raise RuntimeError(f"{buffer.count} elements from {offset} on exceed the window size: rank {rank} has "
                               f"{self.counts[rank]} elements")

    def check_rank(self, rank: int) -> None:
        arguments.rank("rank", rank, self._group.size)

    # ---- waiting ----

    def _wait(self, there: Callable[[], bool], timeout: float) -> bool:
        end = time.monotonic() + timeout
        with self._came:
            while not there():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._came.wait(left)
        return True

    def _behind(self, epoch: int) -> int | None:
        """A rank that has not reached this fence; None when all have. Raises the window's failure."""
        with self._came:
            late = next((rank for rank, reached in enumerate(self._fenced) if reached < epoch), None)
            if late is not None and self._failure is not None:
                raise self._failure
            return late

    # ---- the agent ----

    def _serve(self) -> None:
        answers: dict[int, list[Any]] = {}  # under way, by who asked for them
        header = array.array("q", [0] * 4)
        try:
            while True:
                source = self._group.recv(header, None, _HEADERS, out=header, timeout=_FOREVER).source
                kind, *details = header
                if kind == STOP:
                    break
                mine = answers.setdefault(source, [])
                if kind != GET:  # takes effect after what this rank asked for before
                    for work in mine:
                        work.wait()
                mine[:] = [work for work in mine if not work.done()]
                self._do(kind, source, mine, *details)
            for work in itertools.chain(*answers.values()):
                work.wait()
        except GroupError as error:
            self._fail(error)
        except Exception as error:  # no memory, say: nobody waits for what will not be done
            reason = f"rank {self._group.rank} could not do what was asked of its window: {type(error).__name__}: {error}"
            self._group.abort(reason)
            self._fail(Aborted(reason))

    def _fail(self, error: GroupError) -> None:
        with self._came:
            self._failure = error
            self._came.notify_all()

    def _do(self, kind: int, source: int, answers: list[Any], offset: int, count: int, detail: int) -> None:
        if kind in (SIGNAL, FENCE):
            with self._came:
                (self._signals if kind == SIGNAL else self._fenced)[source] += 1
                self._came.notify_all()
            return
        place = self.buffer.part(offset, (count,))
        if kind == PUT:
            self._group.recv(place, source, _ELEMENTS, out=place)
        elif kind == GET:
            answers.append(self._group.isend(place, source, _ANSWERS + detail))
        else:
            come = allocate((count,), self.dtype)
            self._group.recv(come, source, _ELEMENTS, out=come)
            reduce_into(place, [place, come], REDUCTIONS[detail])

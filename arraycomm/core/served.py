"""Served: what carries a window's operations where ranks do not reach each other's memory.

Messages go by TCP between hosts, and by memory inside one. A thread of each rank, the *agent*, receives what the others ask for
and does it to this rank's array; so accumulate is atomic, and operations of one rank on one target take effect in their
order. A request is a header (tag 0) and, for put and accumulate, its elements: in the header where they are few, else behind it
(tag 1). What get asks for comes back under a tag of that request's own.
"""

from __future__ import annotations

import array
import itertools
import threading
import time
from collections.abc import Callable

from arraycomm._engine import ffi

from . import threads
from .buffer import Buffer
from .dlpack import allocate
from .errors import Aborted, GroupError
from .group import Group
from .local import reduce_into
from .types import OPS, DeviceType, DType, ReduceOp

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

PUT, GET, ACCUMULATE, SIGNAL, FENCE, STOP = range(6)
INLINE = 64  # bytes of elements that travel in the header
_WORDS = 5  # of a header, before those: kind, offset, count, detail, bytes of elements
_HEADERS, _ELEMENTS, _ANSWERS = range(3)  # tags; answers have this one and those above
_FOREVER = 4e9  # s that the agent waits for requests
_NAMES = tuple(OPS)  # of reductions, by code


class Served:
    """One rank's end. group: the window's own. buffer: this rank's array. Methods give pending operations, to be waited for."""

    def __init__(self, group: Group, buffer: Buffer) -> None:
        self._group, self._buffer = group, buffer
        self._requests, self._fences = itertools.count(), 0
        self._sending = threading.Lock()  # a header and its elements go one after the other
        self._came = threading.Condition()
        self._signals, self._fenced = [0] * group.size, [0] * group.size  # by rank: signals to be waited for; fences reached
        self._failure: GroupError | None = None
        self._agent = threading.Thread(target=self._serve, name=f"arraycomm {group.name}", daemon=True)
        threads.start(self._agent)

    def put(self, source: Buffer, rank: int, offset: int) -> list[Any]:
        return self._give(PUT, source, rank, offset, 0)

    def accumulate(self, source: Buffer, rank: int, offset: int, op: ReduceOp) -> list[Any]:
        return self._give(ACCUMULATE, source, rank, offset, op.code)

    def get(self, to: Buffer, rank: int, offset: int) -> list[Any]:
        request = next(self._requests)
        pending = self._group.irecv(to, rank, _ANSWERS + request, out=to)
        return [pending, self._ask(rank, GET, offset, to.count, request)]

    def signal(self, rank: int) -> list[Any]:
        return [self._ask(rank, SIGNAL)]

    def wait_signal(self, rank: int, timeout: float) -> bool:
        """Takes one signal of that rank, and waits for it (seconds). Whether it came in time."""
        return self._wait(lambda: self._take_signal(rank), timeout)

    def _take_signal(self, rank: int) -> bool:
        if self._signals[rank]:
            self._signals[rank] -= 1
            return True
        if self._failure is not None:
            raise self._failure
        return False

    def fence(self, timeout: float) -> int | None:
        """All ranks call it. None when all have come, or a rank that has not in time."""
        self._fences += 1
        epoch = self._fences
        for work in [self._ask(rank, FENCE) for rank in range(self._group.size)]:
            work.wait()
        return None if self._wait(lambda: self._behind(epoch) is None, timeout) else self._behind(epoch)

    @property
    def failed(self) -> bool:
        """What ended the group is known."""
        return self._failure is not None

    def stop(self) -> None:
        """After the last fence."""
        self._ask(self._group.rank, STOP).wait()
        self._agent.join()

    def closed(self) -> None:
        """After the group was closed."""
        self._agent.join()

    def _give(self, kind: int, source: Buffer, rank: int, offset: int, op: int) -> list[Any]:
        with self._sending:
            nbytes = source.count * DType(source.dtype).itemsize
            if nbytes <= INLINE and source.device_type == DeviceType.CPU:
                return [self._ask(rank, kind, offset, source.count, op, source=source, nbytes=nbytes)]
            return [self._ask(rank, kind, offset, source.count, op), self._group.isend(source, rank, _ELEMENTS)]

    def _ask(self, rank: int, kind: int, offset: int = 0, count: int = 0, detail: int = 0, *, source: Buffer | None = None,
             nbytes: int = -1) -> Any:
        header = _header(kind, offset, count, detail, nbytes)
        if source is not None:
            ffi.memmove(_inline(header), ffi.cast("char *", source.address), nbytes)
        return self._group.isend(header, rank, _HEADERS)

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
        header = _header()
        try:
            while True:
                source = self._group.recv(header, None, _HEADERS, out=header, timeout=_FOREVER).source
                kind, offset, count, detail, nbytes = header[:_WORDS]
                if kind == STOP:
                    break
                mine = answers.setdefault(source, [])
                if kind != GET:  # takes effect after what this rank asked for before
                    for work in mine:
                        work.wait()
                mine[:] = [work for work in mine if not work.done()]
                if kind in (SIGNAL, FENCE):
                    self._tell(kind, source)
                elif kind == GET:
                    mine.append(self._group.isend(self._buffer.part(offset, (count,)), source, _ANSWERS + detail))
                else:
                    self._take(kind, source, self._buffer.part(offset, (count,)), _NAMES[detail], header, nbytes)
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

    def _tell(self, kind: int, source: int) -> None:
        with self._came:
            (self._signals if kind == SIGNAL else self._fenced)[source] += 1
            self._came.notify_all()

    def _take(self, kind: int, source: int, place: Buffer, op: str, header: array.array[int], nbytes: int) -> None:
        """Elements: those in the header, else (nbytes < 0) those behind it."""
        come = place if kind == PUT else allocate((place.count,), place.dtype)
        if nbytes < 0:
            self._group.recv(come, source, _ELEMENTS, out=come)
        elif nbytes <= len(_inline(header)) and nbytes == place.count * DType(place.dtype).itemsize:
            ffi.memmove(ffi.cast("char *", come.address), _inline(header), nbytes)
        else:
            raise ValueError(f"rank {source} sent {nbytes} bytes for {place.count} elements")
        if kind == ACCUMULATE:
            reduce_into(place, [place, come], op)


def _header(*words: int) -> array.array[int]:
    return array.array("q", [*words, *[0] * (_WORDS + INLINE // 8 - len(words))])


def _inline(header: array.array[int]) -> memoryview:
    """Where a header has elements."""
    return memoryview(header).cast("B")[8 * _WORDS :]

"""Flight: the pending operations of a communicator, and the watcher thread.

The host does not block on GPU work. So one thread per process polls, while operations are pending: for their timeouts, for
lost peers, and for NCCL's asynchronous errors.
"""

from __future__ import annotations

import collections
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

from arraycomm.core.base import threads
from arraycomm.core.base.errors import CollectiveTimeout, DistError
from arraycomm.core.base.log import log
from arraycomm.core.gpu.runtime import Runtime

from .work import NcclWork

_LOOK = 0.02  # s: polling interval of the thread
_STEP = 1e-4  # s: polling interval of drain()
_MANY = 64  # pending works beyond which the caller itself reaps those that have completed


class _Answer(threading.local):
    out: Any = None


class Place:
    """The CUDA queries before every operation, for one device, with an output buffer per thread. Errors and special cases are
    left to Runtime, which raises the exceptions."""

    def __init__(self, cuda: Runtime, device: int) -> None:
        self._made, self._answer, self._device = cuda.ffi.new, _Answer(), device
        self._get_device, self._is_capturing = cuda.lib.cudaGetDevice, cuda.lib.cudaStreamIsCapturing

    def is_current(self) -> bool:
        """Whether the device is the calling thread's current one."""
        out = self._answer.out
        if out is None:
            out = self._answer.out = self._made("int *")
        return not self._get_device(out) and out[0] == self._device

    def ordinary(self, stream: int) -> bool:
        """Whether the device is current, and the stream is certainly not being captured."""
        if not self.is_current():
            return False
        out = self._answer.out
        return not (self._is_capturing(stream, out) or out[0])


class Flight:
    """The works in the order in which they were enqueued. who: "rank 0 of 2 in group 'world'", for errors."""

    def __init__(self, cuda: Runtime, device: int, who: str) -> None:
        self.cuda, self.device, self.who = cuda, device, who
        self.place = Place(cuda, device)
        self._works: collections.deque[NcclWork] = collections.deque()
        self._events: list[int] = []  # free events, for reuse
        self._ordering = cuda.event(device)
        self._error: DistError | None = None
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether work was pending at the last poll."""
        return bool(self._works)

    def enqueued(self, works: list[NcclWork], stream: int) -> None:
        """Records an event after these works on the stream. After fail() they are marked as failed: ncclCommAbort may complete
        their event."""
        event = self._events.pop() if self._events else self.cuda.event(self.device)
        code = self.cuda.lib.cudaEventRecord(event, stream)
        if code:
            self.cuda.check(code, "record an event")
        with self._lock:
            for work in works:
                work.event, work.error, work.ended = event, self._error, self._error is not None
            self._works.extend(works)
        if len(self._works) > _MANY:
            self.reap()

    def behind(self, stream: int, other: int) -> None:
        """Makes the other stream wait for the work enqueued on the first. The current device is ours. One event is enough: a wait
        refers to the last record before it."""
        self.cuda.record(self._ordering, stream)
        self.cuda.wait_event(other, self._ordering)

    def order(self, work: NcclWork, streams: set[int]) -> None:
        """Makes the streams wait for the work."""
        with self._lock, self.cuda.on(self.device):
            if not work.ended:  # else its event may already be reused
                for stream in streams:
                    self.cuda.wait_event(stream, work.event)

    def look(self, work: NcclWork) -> bool:
        """Whether a work has completed. Any thread. An event query creates a context on the current device, so ours is set."""
        if not self.place.is_current():
            with self.cuda.on(self.device):
                return self._look(work)
        return self._look(work)

    def _look(self, work: NcclWork) -> bool:
        with self._lock:
            if not work.ended and work.event and self.cuda.came(work.event):
                work.ended = True
                work.buffers = ()
        return work.ended

    def reap(self) -> NcclWork | None:
        """Removes completed works and returns the first pending one. The device is the current one."""
        query = self.cuda.lib.cudaEventQuery
        with self._lock:
            while self._works:
                work = self._works[0]
                if not work.ended and query(work.event) and not self.cuda.came(work.event):  # came() raises for an error code
                    break
                self._works.popleft()
                work.ended = True
                work.buffers = ()
                if not self._works or self._works[0].event != work.event:  # works of a batch share an event
                    self._events.append(work.event)
            first = self._works[0] if self._works else None
        return first

    def oldest(self) -> str:
        """The name of the first work that was pending at the last poll; "" if none."""
        with self._lock:
            return f"{self._works[0].what}, the oldest operation under way," if self._works else ""

    def drain(self, seconds: float) -> None:
        """Waits until all works have completed. Raises CollectiveTimeout."""
        end = time.monotonic() + seconds
        with self.cuda.on(self.device):
            while (first := self.reap()) is not None:
                if time.monotonic() >= end:
                    raise CollectiveTimeout(f"{self.who}: {first.what} has not ended within {seconds:g} s")
                time.sleep(_STEP)

    def fail(self, error: DistError) -> None:
        """Marks pending and later works as failed: after ncclCommAbort their events complete without a valid result."""
        with suppress(DistError), self.cuda.on(self.device):  # after a CUDA error no further completion can be detected
            self.reap()
        with self._lock:
            self._error = error
            for work in self._works:
                if not work.ended:
                    work.error, work.ended = error, True

    def close(self) -> None:
        with self._lock, self.cuda.on(self.device):
            for event in {self._ordering, *self._events, *(work.event for work in self._works)}:
                self.cuda.destroy_event(event)
            self._events.clear()
            self._works.clear()


class Watcher:
    """The watcher thread. It sleeps while no work is pending."""

    def __init__(self) -> None:
        self.awake = False
        self._wake = threading.Event()
        self._watched: weakref.WeakSet[object] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, communicator: object) -> None:
        """Polls communicator.tick() until that returns False (no pending work)."""
        self._watched.add(communicator)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="arraycomm-nccl-watcher", daemon=True)
            threads.start(self._thread)

    def wake(self) -> None:
        """Called when work has become pending."""
        self.awake = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            time.sleep(_LOOK)
            self._wake.clear()
            self.awake = False
            if any([_tick(communicator) for communicator in list(self._watched)]):
                self.wake()


def _tick(communicator: Any) -> bool:
    try:
        return bool(communicator.tick())
    except Exception:
        log().exception("the thread that watches NCCL's operations")
        return False


watcher = Watcher()
# A forked child has no watcher thread, and the communicators belong to the parent.
os.register_at_fork(after_in_child=watcher.__init__)  # type: ignore[misc]

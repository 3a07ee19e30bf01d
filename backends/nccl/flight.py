"""Flight: what a communicator has under way, and who looks after it.

Nobody waits for work on a GPU, so one thread a process, while anything is under way, looks whether it ends in time, whether the
peers live, and whether NCCL has failed meanwhile.
"""

from __future__ import annotations

import collections
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from arraycomm.core.base import threads
from arraycomm.core.base.errors import CollectiveTimeout, DistError
from arraycomm.core.base.log import log
from arraycomm.core.base.typed import Any
from arraycomm.core.gpu.runtime import Runtime

from .work import NcclWork

_LOOK = 0.02  # s between looks of the thread
_STEP = 1e-4  # s between looks of who waits for the end of all
_MANY = 64  # works under way, from which on the caller looks for those that have ended


class _Answer(threading.local):
    out: Any = None


class Place:
    """The queries of CUDA before every operation, on one device, into memory that each thread allocates once. Anything out of the
    ordinary is left to Runtime, which explains it."""

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
        """Whether it is, and the stream surely under no capture."""
        if not self.is_current():
            return False
        out = self._answer.out
        return not (self._is_capturing(stream, out) or out[0])


class Flight:
    """Works in the order in which they were enqueued. who: "rank 0 of 2 in group 'world'"."""

    def __init__(self, cuda: Runtime, device: int, who: str) -> None:
        self.cuda, self.device, self.who = cuda, device, who
        self.place = Place(cuda, device)
        self._works: collections.deque[NcclWork] = collections.deque()
        self._events: list[int] = []  # to be used again
        self._ordering = cuda.event(device)
        self._error: DistError | None = None
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether anything is under way, or was when last looked at."""
        return bool(self._works)

    def enqueued(self, works: list[NcclWork], stream: int) -> None:
        """All that was enqueued on the stream until now, these works among it. After fail() they have failed too: their event may
        come because NCCL was aborted."""
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
        """What comes on the other stream begins when what is enqueued on the first has ended. By the communicator's thread, whose
        current device is ours: a wait is for what an event was recorded for last, so that one serves all."""
        self.cuda.record(self._ordering, stream)
        self.cuda.wait_event(other, self._ordering)

    def order(self, work: NcclWork, streams: set[int]) -> None:
        """What comes on the streams begins after the work's end."""
        with self._lock, self.cuda.on(self.device):
            if not work.ended:  # else its event is another's by now
                for stream in streams:
                    self.cuda.wait_event(stream, work.event)

    def look(self, work: NcclWork) -> bool:
        """Whether a work has ended. Any thread: who asks for an event makes a context on his current device."""
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
        """Forgets what has ended, and gives the first that has not. The device is the current one."""
        query = self.cuda.lib.cudaEventQuery
        with self._lock:
            while self._works:
                work = self._works[0]
                if not work.ended and query(work.event) and not self.cuda.came(work.event):  # which tells what else it is
                    break
                self._works.popleft()
                work.ended = True
                work.buffers = ()
                if not self._works or self._works[0].event != work.event:  # a batch's works share one
                    self._events.append(work.event)
            first = self._works[0] if self._works else None
        return first

    def oldest(self) -> str:
        """What the first work is that had not ended when last looked at; empty: there is none."""
        with self._lock:
            return f"{self._works[0].what}, the oldest operation under way," if self._works else ""

    def drain(self, seconds: float) -> None:
        """Waits until all has ended. CollectiveTimeout."""
        end = time.monotonic() + seconds
        with self.cuda.on(self.device):
            while (first := self.reap()) is not None:
                if time.monotonic() >= end:
                    raise CollectiveTimeout(f"{self.who}: {first.what} has not ended within {seconds:g} s")
                time.sleep(_STEP)

    def fail(self, error: DistError) -> None:
        """What has not ended by now never will, whatever its event says after NCCL was aborted; nor what is enqueued after it."""
        with suppress(DistError), self.cuda.on(self.device):  # where CUDA has failed nothing more is known to have ended
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
    """The thread. Asleep while nothing is under way."""

    def __init__(self) -> None:
        self.awake = False
        self._wake = threading.Event()
        self._watched: weakref.WeakSet[object] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, communicator: object) -> None:
        """communicator.tick() is called now and then; False: it has nothing under way."""
        self._watched.add(communicator)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="arraycomm-nccl-watcher", daemon=True)
            threads.start(self._thread)

    def wake(self) -> None:
        """Something is under way."""
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

    def after_fork(self) -> None:
        """The child has no thread, and its parent's communicators are not its own."""
        self.__init__()  # type: ignore[misc]


def _tick(communicator: object) -> bool:
    tick: Callable[[], bool] = communicator.tick  # type: ignore[attr-defined]
    try:
        return tick()
    except Exception:
        log().exception("the thread that watches NCCL's operations")
        return False


watcher = Watcher()
os.register_at_fork(after_in_child=watcher.after_fork)

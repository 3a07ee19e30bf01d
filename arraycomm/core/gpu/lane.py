"""Transfers between a device and the host: a stream per direction, pinned memory, and cleanup after failed operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..arrays.buffer import Buffer
from ..base.errors import CollectiveTimeout, DistError
from ..base.log import log
from .pinned import Block, Pool
from .runtime import TO_DEVICE, TO_HOST, Runtime

_SPINS = 200  # spin budget: event queries before the first sleep, about 100 us
LONGEST_NAP = 0.001  # s
_FARTHEST = 2**31 - 1  # bytes between rows (cudaDeviceProp.memPitch)
PATIENCE = 5.0  # s that close() waits for pending work on the device


class Event:
    """A pooled event of a Lane. It returns to the pool explicitly or with its last reference; a traceback may keep one."""

    def __init__(self, handle: int, free: list[int]) -> None:
        self.handle, self._free = handle, free

    def release(self) -> None:
        if self.handle:
            self._free.append(self.handle)
            self.handle = 0

    __del__ = release


class Lane:
    """One communicator's transfers with one device, which is current when the methods are called."""

    def __init__(self, cuda: Runtime, pool: Pool, device: int) -> None:
        self.cuda, self.device, self._pool = cuda, device, pool
        self.down = cuda.stream(device)
        try:
            self.up = cuda.stream(device)
        except DistError:
            cuda.destroy_stream(self.down)
            raise
        self._events: list[int] = []
        self._left: list[tuple[list[Event | None], list[Event], Any]] = []
        self._lock = threading.Lock()  # guards the leftovers: Works end in any thread

    def block(self, nbytes: int) -> Block:
        """Pinned memory."""
        return self._pool.take(nbytes)

    def event(self) -> Event:
        return Event(self._events.pop() if self._events else self.cuda.event(self.device), self._events)

    def record(self, event: Event, stream: int) -> None:
        self.cuda.record(event.handle, stream)

    def after(self, buffer: Buffer, stream: int) -> None:
        """Makes our stream wait for the buffer's stream."""
        if buffer.count:
            self.cuda.order(after=buffer.stream, stream=stream, device=self.device)

    def pack(self, buffer: Buffer, slices: list[tuple[int, int]], to: int) -> None:
        """Enqueues the copy of slices (first element, elements) of a device array, one after the other, to `to`."""
        for device, pitch, packed, run, rows in _rows(buffer, slices, to):
            self._copy((packed, run), (device, pitch), run, rows, TO_HOST, self.down)

    def unpack(self, buffer: Buffer, slices: list[tuple[int, int]], source: int) -> None:
        """The reverse of pack(): from pinned memory to the array."""
        for device, pitch, packed, run, rows in _rows(buffer, slices, source):
            self._copy((device, pitch), (packed, run), run, rows, TO_DEVICE, self.up)

    def _copy(self, to: tuple[int, int], source: tuple[int, int], run: int, rows: int, kind: int, stream: int) -> None:
        """to, source: an address, and the bytes from a row to the next."""
        if rows > 1:
            self.cuda.copy_rows(*to, *source, run, rows, kind, stream)
        else:
            self.cuda.copy(to[0], source[0], run, kind, stream)

    def wait(self, event: Event, deadline: float, doing: str) -> None:
        """Blocks the host until the event has completed; CollectiveTimeout. It polls, because CUDA has no wait with a timeout."""
        looks = 0
        while not self.cuda.came(event.handle):
            looks += 1
            if looks < _SPINS:
                continue
            if time.monotonic() > deadline:
                raise CollectiveTimeout(f"{doing}: device {self.device} did not reach it in time: what the program enqueued "
                                        "there before is still under way")
            time.sleep(min(LONGEST_NAP, 2e-5 * (looks - _SPINS + 1)))

    # ---- after a failure ----

    def leave(self, events: list[Event], held: Any) -> None:
        """Abandons enqueued work: keeps its `events`, and in `held` all memory that it uses, until it has completed."""
        with self._lock:
            self._left.append(([self._end_of(stream) for stream in (self.down, self.up)], events, held))

    def _end_of(self, stream: int) -> Event | None:
        try:
            with self.cuda.on(self.device):
                event = self.event()
                self.record(event, stream)
                return event
        except DistError:
            return None  # completion can no longer be detected: held for ever

    def reap(self) -> bool:
        """Frees what completed work held, and excess pinned memory. Whether no work is left."""
        self._pool.trim()
        if not self._left:
            return True
        with self._lock:
            ended = [left for left in self._left if self._ended(left[0])]
            self._left = [left for left in self._left if left not in ended]
        for ends, events, _ in ended:
            for event in (*ends, *events):
                if event is not None:
                    event.release()
        return not self._left

    def _ended(self, ends: list[Event | None]) -> bool:
        try:
            return all(event is not None and self.cuda.came(event.handle) for event in ends)
        except DistError:
            return True  # CUDA has failed and executes nothing more

    def close(self) -> bool:
        """Waits briefly for abandoned work. If it does not complete, its memory is never freed.

        Returns whether all work has completed.
        """
        try:
            with self.cuda.on(self.device):
                deadline = time.monotonic() + PATIENCE
                while not self.reap() and time.monotonic() < deadline:
                    time.sleep(LONGEST_NAP)
                _all_of(self.cuda.destroy_event, self._events)
                _all_of(self.cuda.destroy_stream, [self.down, self.up])
        except DistError as error:
            log().warning("%s", error)
        if self._left:
            log().warning("device %d still has copies of a failed operation enqueued; their memory is never freed", self.device)
            _forever.append(self._left)
        return not self._left


_forever: list[Any] = []


def _all_of(destroy: Callable[[int], None], handles: list[int]) -> None:
    """Runs all steps, also after an error; raises the last error."""
    failure = None
    while handles:
        try:
            destroy(handles.pop())
        except DistError as error:
            failure = error
    if failure is not None:
        raise failure


def _rows(buffer: Buffer, slices: list[tuple[int, int]], packed: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(address in the array, bytes to the next row, address in packed memory, bytes of a row, rows) of each copy."""
    width = buffer.nbytes // buffer.count if buffer.count else 1
    if _even(slices) and (slices[1][0] - slices[0][0]) * width <= _FARTHEST:
        (start, count), (second, _) = slices[:2]
        yield buffer.address + start * width, (second - start) * width, packed, count * width, len(slices)
        return
    for start, count in slices:
        yield buffer.address + start * width, 0, packed, count * width, 1
        packed += count * width


def _even(slices: list[tuple[int, int]]) -> bool:
    """Whether there are several slices, of one length and with a constant stride."""
    if len(slices) < 2:
        return False
    step = slices[1][0] - slices[0][0]
    return all(count == slices[0][1] and start == slices[0][0] + i * step for i, (start, count) in enumerate(slices))

"""NcclWork: an operation enqueued on a stream, and the event of its completion."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from arraycomm.core.arrays.arrays import current_streams
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.base.errors import DistError

if TYPE_CHECKING:
    from .flight import Flight

_STEP = 1e-4  # s: polling interval of an event: NCCL and CUDA have no blocking wait with a timeout


class NcclWork:
    """Follows arraycomm.core.interface.backend.Work, except that wait() without a timeout does not block the host."""

    __slots__ = ("_flight", "buffers", "deadline", "ended", "error", "event", "peer", "stream", "unordered", "what")

    def __init__(self, flight: Flight, what: str, stream: int, deadline: float, buffers: tuple[Buffer | None, ...], *,
                 unordered: bool) -> None:
        """what: the operation's name. stream: the caller's. deadline: of time.monotonic(). buffers: kept alive until completion.
        unordered: it writes an array of a library with unknown streams, which cannot be made to wait."""
        self._flight, self.what, self.stream, self.deadline, self.buffers = flight, what, stream, deadline, buffers
        self.unordered = unordered
        self.event = 0  # recorded when the work is enqueued; in a batch, at the batch's end
        self.ended = False
        self.error: DistError | None = None
        self.peer = (-1, 0, 0)

    def wait(self, timeout: float | None = None) -> None:
        """Without timeout: makes the streams of the array's library and of the call wait for the work. Returns at once; if the
        work is unordered, at its completion.

        timeout: blocks the host until completion, for at most this many seconds. ValueError inside the work's own batch.
        """
        if not self.event and not self.ended:
            raise ValueError(f"{self._flight.who}: wait() for {self.what} within batch(), which begins when the batch ends; "
                             "wait after the batch")
        if timeout is not None or self.unordered:
            self._block(math.inf if timeout is None else timeout)  # the watcher aborts a work that exceeds its timeout
        if not self.done():
            self._flight.order(self, {self.stream, *current_streams(self._flight.device)})
        if self.error is not None:
            raise self.error

    def _block(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.done():
            if time.monotonic() >= end:
                raise TimeoutError(f"{self._flight.who}: {self.what} has not ended within {seconds:g} s; it continues")
            time.sleep(_STEP)

    def done(self) -> bool:
        try:
            return self.ended or self._flight.look(self)
        except DistError:  # a CUDA error: the watcher detects it too, and aborts all pending work
            return self.ended

    def source(self) -> tuple[int, int, int]:
        return self.peer

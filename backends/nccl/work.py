"""NcclWork: what was enqueued on a stream, and the event that comes when it has ended."""

from __future__ import annotations

import math
import time

from arraycomm.core.arrays.arrays import current_streams
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.base.errors import DistError
from arraycomm.core.base.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from .flight import Flight

_STEP = 1e-4  # s between looks at an event: NCCL and CUDA offer nothing to sleep on that a timeout could end


class NcclWork:
    """Follows arraycomm.core.interface.backend.Work, but for wait(): without a timeout it does not block the host."""

    __slots__ = ("_flight", "buffers", "deadline", "ended", "error", "event", "peer", "stream", "unordered", "what")

    def __init__(self, flight: Flight, what: str, stream: int, deadline: float, buffers: tuple[Buffer | None, ...], *,
                 unordered: bool) -> None:
        """what: the operation's name. stream: the caller's. deadline: of time.monotonic(). buffers: kept until the end.
        unordered: it writes an array of a library whose streams nobody knows, which can't be made to wait."""
        self._flight, self.what, self.stream, self.deadline, self.buffers = flight, what, stream, deadline, buffers
        self.unordered = unordered
        self.event = 0  # recorded once it is enqueued: not before its batch ends
        self.ended = False
        self.error: DistError | None = None
        self.peer = (-1, 0, 0)

    def wait(self, timeout: float | None = None) -> None:
        """Without timeout: what the array's library enqueues from now on, and on the call's stream, begins after the end; returns
        at once, or at the end where it is unordered.

        timeout: blocks the host until the end, for so many seconds at most. ValueError within the batch that begins it.
        """
        if not self.event and not self.ended:
            raise ValueError(f"{self._flight.who}: wait() for {self.what} within batch(), which begins when that ends; wait "
                             "behind the batch")
        if timeout is not None or self.unordered:
            self._block(math.inf if timeout is None else timeout)  # who watches ends what does not end
        if not self.done():
            self._flight.order(self, {self.stream, *current_streams(self._flight.device)})
        if self.error is not None:
            raise self.error

    def _block(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.done():
            if time.monotonic() >= end:
                raise TimeoutError(f"{self._flight.who}: {self.what} has not ended within {seconds:g} s; it goes on")
            time.sleep(_STEP)

    def done(self) -> bool:
        try:
            return self.ended or self._flight.look(self)
        except DistError:  # of CUDA: who watches finds it too, and ends all that is under way
            return self.ended

    def source(self) -> tuple[int, int, int]:
        return self.peer

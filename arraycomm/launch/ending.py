"""The end of a job in which a rank has failed: the rank that caused it, and the signals to the others."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

SETTLE_S = 0.3  # wait after the first failure: the rank that caused it may end after peers that only lost it
PATIENT_S = 0.7  # the same while only such peers have ended: frameworks need time to shut down
GRACE_S = 1.2  # between SIGTERM and SIGKILL; together with PATIENT_S below the documented 2 s
CONSEQUENCES = ("PeerLost", "Aborted")  # errors that are the consequence of another rank's failure


class Failure(Protocol):
    @property
    def consequence(self) -> bool:
        """Whether the rank ended only because another rank did."""


AnyFailure = TypeVar("AnyFailure", bound=Failure)


def cause(failures: Sequence[AnyFailure]) -> AnyFailure:
    """The first failure, in the order of the exits, that is no consequence of another one.

    A rank that raises notifies its peers while it unwinds, so peers may exit before it.
    """
    return next((failure for failure in failures if not failure.consequence), failures[0])


class Schedule:
    """Pending signals, in order."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()
        self.grace = GRACE_S

    def plan(self, *steps: tuple[float, int]) -> None:
        """Replaces the pending signals. A step: seconds from now, signal."""
        now = time.monotonic()
        self._steps = deque((now + delay, number) for delay, number in steps)

    def plan_end(self, failures: Sequence[Failure]) -> None:
        """Called at every failure. The first failure sets the schedule, and so does the first that is no consequence."""
        known = [failure.consequence for failure in failures]
        if len(known) == 1 or (not known[-1] and all(known[:-1])):
            settle = PATIENT_S if known[-1] else SETTLE_S
            self.plan((settle, signal.SIGTERM), (settle + self.grace, signal.SIGKILL))

    def postpone(self, seconds: float) -> None:
        self._steps = deque((when + seconds, number) for when, number in self._steps)

    def next(self) -> float | None:
        """When (time.monotonic()) the next signal is due."""
        return self._steps[0][0] if self._steps else None

    def due(self) -> Iterator[int]:
        """Removes and yields the signals that are due."""
        while self._steps and self._steps[0][0] <= time.monotonic():
            yield self._steps.popleft()[1]

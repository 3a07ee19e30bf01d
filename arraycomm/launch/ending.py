"""The end of a job in which a rank has failed: the rank that caused it, and the signals to the others."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

SETTLE_S = 0.3  # after the first failure: the rank that caused it may end later than ranks that only lost it
PATIENT_S = 0.7  # the same while only such ranks have ended: frameworks need time to shut down
GRACE_S = 1.2  # between SIGTERM and SIGKILL; with PATIENT_S less than the promised 2 s
CONSEQUENCES = ("PeerLost", "Aborted")  # errors of a rank that say another one failed before


class Failure(Protocol):
    @property
    def consequence(self) -> bool:
        """Whether the rank only ended because another one did."""


AnyFailure = TypeVar("AnyFailure", bound=Failure)


def cause(failures: Sequence[AnyFailure]) -> AnyFailure:
    """The first of those (in the order of their ends) that did not only lose a peer.

    A rank that raises tells its peers while it unwinds, so that they may be gone before it is.
    """
    return next((failure for failure in failures if not failure.consequence), failures[0])


class Schedule:
    """Signals still to be sent, in order."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()
        self.grace = GRACE_S

    def plan(self, *steps: tuple[float, int]) -> None:
        """Replaces what was planned. A step: seconds from now, signal."""
        now = time.monotonic()
        self._steps = deque((now + delay, number) for delay, number in steps)

    def plan_end(self, failures: Sequence[Failure]) -> None:
        """At every failure. The first decides, and the first that is no consequence."""
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
        """Takes the signals whose time has come."""
        while self._steps and self._steps[0][0] <= time.monotonic():
            yield self._steps.popleft()[1]

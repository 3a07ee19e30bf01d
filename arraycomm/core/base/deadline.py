"""Deadline: how long something may be waited for by a process that others suspend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_SLICE = 0.1  # s
_AT_ONCE = 32  # ranks that share a machine's processors, or one interpreter, without much waiting for each other


def grown(seconds: float, ranks: int) -> float:
    """How long to wait for one of so many ranks where `seconds` do for few: all may begin at once, and take turns."""
    return seconds * max(1.0, ranks / _AT_ONCE)


class Deadline:
    """Seconds in all, waited in slices. A suspended process or machine loses one slice at most, and not all that is left.

    A clock alone would blame a peer that was suspended together with this process.
    """

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    @contextmanager
    def slice(self, most: float = _SLICE) -> Iterator[float]:
        """How many seconds may be waited inside; 0 when nothing is left. What is spent there is taken away."""
        seconds = max(min(self.left, most), 0.0)
        begin = time.monotonic()
        try:
            yield seconds
        finally:
            self.left -= min(time.monotonic() - begin, seconds)

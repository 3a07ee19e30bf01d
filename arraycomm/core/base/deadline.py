"""Deadline: a timeout that tolerates a suspended process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_SLICE = 0.1  # s
_AT_ONCE = 32  # ranks that can share a machine's CPUs, or one interpreter, without long delays


def grown(seconds: float, ranks: int) -> float:
    """The timeout for one of many ranks, where `seconds` is enough for few: all may start at once and share the CPUs."""
    return seconds * max(1.0, ranks / _AT_ONCE)


class Deadline:
    """A timeout in seconds, consumed in slices. If the process or machine is suspended, at most one slice is lost.

    A plain clock would time out on a peer that was suspended together with this process.
    """

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    @contextmanager
    def slice(self, most: float = _SLICE) -> Iterator[float]:
        """Context: yields the seconds that may be waited inside (0: expired) and subtracts the time spent there."""
        seconds = max(min(self.left, most), 0.0)
        begin = time.monotonic()
        try:
            yield seconds
        finally:
            self.left -= min(time.monotonic() - begin, seconds)

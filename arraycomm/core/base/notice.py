"""Notices about a long wait and its missing ranks: after ARRAYCOMM_WAIT_NOTICE seconds, then at six times that, and so on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from . import settings
from .log import log

_AGAIN = 6  # as TELL_AGAIN of the engine's wait.c


def patience() -> float:
    """Seconds until the first notice; 0: never. init() raises for an invalid value, because it can notify the other ranks."""
    try:
        return settings.get_number("ARRAYCOMM_WAIT_NOTICE")
    except ValueError:
        return float(settings.TABLE["ARRAYCOMM_WAIT_NOTICE"].default)


class Notice:
    """The notices of one wait. text: the message after a number of seconds; "": none, because another rank logs it."""

    def __init__(self, text: Callable[[float], str]) -> None:
        self._text, self._begun, self._patience = text, time.monotonic(), patience()
        self._next = self._begun + self._patience if self._patience else math.inf

    def left(self) -> float:
        """Seconds until the next notice, at least a few milliseconds."""
        return max(self._next - time.monotonic(), 0.005)

    def tell(self) -> None:
        """Logs the notice if it is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _AGAIN * self._patience
        text = self._text(now - self._begun)
        if text:
            log().warning("%s", text)

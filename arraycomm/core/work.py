"""Work: an operation under way, and the array that it will give; native/work.c."""

from __future__ import annotations

from arraycomm._engine import Work

from .record import Record
from .typed import Any

__all__ = ["Received", "Work"]


class Received(Record):
    """What a receive gives: the array, the rank it came from and its tag."""

    array: Any
    source: int
    tag: int

"""Work: an operation under way, and the array that it will give; native/work.c."""

from __future__ import annotations

from arraycomm._engine import Work

from .record import Record

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Received", "Work"]


class Received(Record):
    """What a receive gives: the array, the rank it came from and its tag."""

    array: Any
    source: int
    tag: int

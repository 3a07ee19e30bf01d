"""Work: an operation under way, and the array that it will give; native/work.c."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from arraycomm._engine import Work

from .record import Record
from .typed import Any
from .types import DType

__all__ = ["Message", "Received", "Work", "wait_all", "wait_any"]

_NAP = 1e-4  # s between two looks at all of them


class Received(Record):
    """What a receive gives: the array, the rank it came from and its tag."""

    array: Any
    source: int
    tag: int


class Message(Record):
    """What a probe has found: the rank that a message is from, its tag, its dtype and its number of elements."""

    source: int
    tag: int
    dtype: DType
    elements: int


def wait_all(works: Iterable[Work], timeout: float | None = None) -> list[Any]:
    """Waits for all of them and gives their results, in order. TimeoutError when one has not ended after `timeout` seconds:
    those under way go on. The first error of an operation, in order, is raised, when all before it have ended."""
    end = None if timeout is None else time.monotonic() + timeout
    return [work.result(None if end is None else max(0.0, end - time.monotonic())) for work in works]


def wait_any(works: Sequence[Work], timeout: float | None = None) -> int:
    """The index of one that has ended, well or not. TimeoutError as in wait_all(); ValueError for none."""
    if not works:
        raise ValueError("wait_any needs at least one Work")
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        for index, work in enumerate(works):
            if work.done():
                return index
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(f"none of {len(works)} operations has ended after {timeout} s; they go on")
        time.sleep(_NAP)

"""Work: an operation under way, and the array that it will give; native/call/work.c."""

from __future__ import annotations

import time
from collections.abc import Iterable

from arraycomm._engine import Work

from ..arrays.types import DType
from ..base.errors import DistError
from ..base.record import Record
from ..base.typed import Any
from .arguments import seconds

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
    all_of_them, end = _checked("wait_all", works), _end(timeout)
    for work in all_of_them:
        try:
            work.wait(None if end is None else max(0.0, end - time.monotonic()))
        except DistError:  # its own
            raise
        except TimeoutError:
            late = sum(not one.done() for one in all_of_them)
            raise TimeoutError(f"{late} of {len(all_of_them)} operations have not ended after {timeout} s; they go on") from None
    return [work.result() for work in all_of_them]


def wait_any(works: Iterable[Work], timeout: float | None = None) -> int:
    """The index of one that has ended, well or not. TimeoutError as in wait_all(); ValueError for none."""
    all_of_them, end = _checked("wait_any", works), _end(timeout)
    if not all_of_them:
        raise ValueError("wait_any needs at least one Work")
    while True:
        for index, work in enumerate(all_of_them):
            if work.done():
                return index
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(f"none of {len(all_of_them)} operations has ended after {timeout} s; they go on")
        time.sleep(_NAP)


def _checked(function: str, works: Any) -> list[Any]:
    """A generator can be read once. Whatever ends as a Work does will do: arraycomm.distributed's, say."""
    try:
        found = list(works)
    except TypeError:
        raise TypeError(f"{function} needs a list of Works, got {type(works).__name__}") from None
    for work in found:
        if not hasattr(work, "done"):
            raise TypeError(f"{function} needs Works, which the calls with async_op=True give, got {type(work).__name__}")
    return found


def _end(timeout: float | None) -> float | None:
    seconds(timeout)
    return None if timeout is None else time.monotonic() + timeout

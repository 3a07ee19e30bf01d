"""Work: a pending operation and its future result; native/call/work.c."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from arraycomm._engine import Work

from ..arrays.types import DType
from ..base.errors import DistError
from .arguments import seconds
from .part import Array

_Result = TypeVar("_Result")

__all__ = ["Message", "Received", "Several", "Work", "wait_all", "wait_any"]

_NAP = 1e-4  # s: polling interval over all of them


class _Received(NamedTuple):  # Python 3.10 has no generic NamedTuple
    array: Any
    source: int
    tag: int


class Received(_Received, Generic[Array]):
    """The result of a receive.

    Attributes:
        array: of like's library, or out itself.
        source: the rank that it came from.
        tag: the message's.

    - Blocks: never; a tuple of the three.
    - Errors: none; the receive has raised them.

    Examples:
        >>> arraycomm.run(lambda group: group.sendrecv(np.ones(1), dest=group.rank), 1)
        [Received(array=array([1.]), source=0, tag=0)]
    """

    __slots__ = ()
    array: Array


class Message(NamedTuple):
    """The result of a probe.

    Attributes:
        source: the rank that the message is from.
        tag: the message's.
        dtype: a DType; of elements that are moved as bytes DType(n) of label "opaque".
        elements: their number, or that of the bytes.

    - Blocks: never; a tuple of the four.
    - Errors: none; the probe has raised them.

    Examples:
        >>> def work(group):
        ...     going = group.isend(np.ones(3), dest=0)
        ...     return group.probe(timeout=5).elements
        >>> arraycomm.run(work, 1)
        [3]
    """

    source: int
    tag: int
    dtype: DType
    elements: int


class Several:
    """Several operations as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            work.wait(None if end is None else max(0.0, end - time.monotonic()))

    def done(self) -> bool:
        return all(work.done() for work in self._works)


def wait_all(works: Iterable[Work[_Result]], timeout: float | None = None) -> list[_Result]:
    """Waits for several operations and gives their results, in order.

    - Blocks: until the last operation has ended.
    - Timeout: seconds for all together; TimeoutError after it, and the operations continue. None: the operations' own timeouts.
    - Errors: the first error of an operation, in order, when all before it have ended. TypeError for what is no Work.

    Examples:
        >>> def work(group):
        ...     works = [group.all_reduce(np.ones(1) * n, async_op=True) for n in (1, 2)]
        ...     return [array.tolist() for array in arraycomm.wait_all(works)]
        >>> arraycomm.run(work, 2)
        [[[2.0], [4.0]], [[2.0], [4.0]]]
    """
    all_of_them, end = _checked("wait_all", works), _end(timeout)
    for work in all_of_them:
        try:
            work.wait(None if end is None else max(0.0, end - time.monotonic()))
        except DistError:  # the operation's own error
            raise
        except TimeoutError:
            late = sum(not one.done() for one in all_of_them)
            text = f"{late} of {len(all_of_them)} operations have not ended after {timeout} s; they continue"
            raise TimeoutError(text) from None
    return [work.result() for work in all_of_them]


def wait_any(works: Iterable[Work[Any]], timeout: float | None = None) -> int:
    """The index of an operation that has ended, with or without an error.

    - Blocks: until the first one has ended.
    - Timeout: seconds; TimeoutError after it, and all continue. None: the operations' own timeouts.
    - Errors: ValueError for no Work, TypeError for something else. That of the operation comes from its own wait().

    Examples:
        >>> arraycomm.run(lambda group: arraycomm.wait_any([group.barrier(async_op=True)]), 2)
        [0, 0]
    """
    all_of_them, end = _checked("wait_any", works), _end(timeout)
    if not all_of_them:
        raise ValueError("wait_any needs at least one Work")
    while True:
        for index, work in enumerate(all_of_them):
            if work.done():
                return index
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(f"none of {len(all_of_them)} operations has ended after {timeout} s; they continue")
        time.sleep(_NAP)


def _checked(function: str, works: Any) -> list[Any]:
    """A list, because a generator can be iterated once. Duck-typed: for example, arraycomm.distributed's Work is accepted."""
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

"""Work: an operation under way, and the array that it will give."""

from __future__ import annotations

from collections.abc import Callable

from . import backend
from .record import Record

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any


class Received(Record):
    """What a receive gives: the array, the rank it came from and its tag."""

    array: Any
    source: int
    tag: int


class Work:
    """The handle of an asynchronous operation.

    The arrays that take part stay alive until it has ended; do not write to them before.
    """

    __slots__ = ("_work", "_make", "_result", "_made")

    def __init__(self, work: backend.Work | None, make: Callable[[], Any]) -> None:
        self._work = work
        self._make = make
        self._result: Any = None
        self._made = False

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the operation has ended.

        Raises TimeoutError when it has not after `timeout` seconds: it goes on then, and one may wait again.
        Raises the operation's own error (a DistError) when it failed.
        """
        if self._work is not None:
            self._work.wait(timeout)

    def result(self, timeout: float | None = None) -> Any:
        """Waits, then gives what the synchronous call would have returned. Errors as in wait()."""
        self.wait(timeout)
        if not self._made:
            self._result = self._make()
            self._made = True
        return self._result

    def done(self) -> bool:
        """Whether the operation has ended, well or not."""
        return self._work is None or self._work.done()

    def source(self) -> tuple[int, int]:
        """After a receive: the rank it came from and its tag. Raises ValueError for other operations."""
        if self._work is None:
            raise ValueError("only a receive has a source")
        rank, tag, _ = self._work.source()
        return rank, tag

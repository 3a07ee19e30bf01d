"""Work: the handle of an asynchronous call, with torch's methods, over the core's Work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from arraycomm.core.base import threads
from arraycomm.core.base.dropped import finish
from arraycomm.core.base.errors import CollectiveTimeout, DistError
from arraycomm.core.base.log import log
from arraycomm.core.group.work import Several as Several

from ..future import followed, new_future

_NO_LIMIT = timedelta(0)
_SUCCESS, _TIMEOUT, _COMM_ERROR = range(3)  # torch's WorkResult


class WaitTimeout(DistError, TimeoutError):
    """Work.wait(timeout) ran out; the operation continues."""


class Boxed:
    """An opaque box around a Work or a ProcessGroup."""

    def __init__(self, content: Any) -> None:
        self.content = content


class Boxable:
    """The methods for boxing, as a base class of Work and ProcessGroup."""

    __slots__ = ()

    def boxed(self) -> Boxed:
        """The handle in an opaque box. unbox() takes it out again.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return Boxed(self)

    @staticmethod
    def unbox(arg0: Boxed) -> Any:
        """The object on which boxed() was called.

        - Blocks: never; nothing is sent.
        - Errors: TypeError for anything else than a box.
        """
        if not isinstance(arg0, Boxed):
            raise TypeError(f"unbox() takes what boxed() gave, got {type(arg0)}")
        return arg0.content


class Work(Boxable):
    """The handle of an asynchronous operation. Its arrays must not be read or written before the operation has ended.

    A program's own class calls `super().__init__()` and defines wait() and other methods; a method that it does not define
    behaves as
    for an operation that has ended.

    - Blocks: wait(), synchronize() and result() do; the other methods do not.
    - Errors: those of the operation, from the three, every time.

    Examples:
        On each of two ranks:

        >>> x = np.ones(1)
        >>> work = dist.all_reduce(x, async_op=True)
        >>> work.wait(timedelta(seconds=60)), x.item(), work.is_completed(), work.is_success()
        (True, 2.0, True, True)
        >>> work.exception() is None, work.result() == [x], work.get_future().value() is not None
        (True, True, True)
        >>> work.synchronize(); work.block_current_stream()
        >>> dist.Work.unbox(work.boxed()) is work, work.get_future_result() is not None
        (True, True)
        >>> work.source_rank()
        Traceback (most recent call last):
        RuntimeError: source_rank() may only be called on work objects that correspond to a recv or recv-from-any call.
    """

    __slots__ = ("__weakref__", "_arrays", "_pending", "_settle")

    def __init__(self, pending: Any = None, arrays: Sequence[Any] = (), settle: Callable[[], Any] | None = None) -> None:
        self._pending: Any = ENDED if pending is None else pending
        self._arrays = arrays
        self._settle = settle

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Blocks until the operation has ended, and gives True.

        - Blocks: until the operation has ended on this rank.
        - Timeout: a timedelta; 0 waits without limit of its own. WaitTimeout (a RuntimeError) after it; the operation continues.
        - Errors: the operation's own. TypeError for a timeout that is no timedelta.
        """
        if timeout is _NO_LIMIT and self._settle is None:
            self._pending.wait()
        else:
            self._end(_seconds(timeout))
        return True

    def synchronize(self) -> None:
        """Blocks until the operation has ended, as wait().

        - Blocks: until the operation has ended on this rank.
        - Errors: the operation's own.
        """
        self._end(None)

    block_current_stream = synchronize  # work on arrays in host memory has no stream that could wait instead

    def is_completed(self) -> bool:
        """Whether the operation has ended, with or without an error.

        - Blocks: never; it continues the operation.
        - Errors: none; exception() gives the operation's.
        """
        if not self._pending.done():
            return False
        if self._settle is not None and self.exception() is None:
            self._settled()
        return True

    def is_success(self) -> bool:
        """Whether the operation has ended without an error.

        - Blocks: never; it continues the operation.
        - Errors: none; exception() gives the operation's.
        """
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The operation's error; None if it ended well or has not ended.

        - Blocks: never; it continues the operation.
        - Errors: none are raised; the error is the result.
        """
        if not self._pending.done():
            return None
        try:
            self._pending.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> list[Any]:
        """The arrays that the operation wrote. Waits for its end.

        - Blocks: until the operation has ended on this rank.
        - Errors: the operation's own.
        """
        self._end(None)
        return list(self._arrays)

    def source_rank(self) -> int:
        """After a receive, the sender's rank in the group.

        - Blocks: never; nothing is sent.
        - Errors: RuntimeError for other operations.
        """
        raise RuntimeError("source_rank() may only be called on work objects that correspond to a recv or recv-from-any call.")

    def _source_rank(self) -> int:
        """The older spelling of source_rank()."""
        return self.source_rank()

    def get_future(self) -> Any:
        """A future of result(): torch.futures.Future if torch is loaded, arraycomm.distributed.future.Future otherwise.

        - Blocks: never; the future does.
        - Errors: none; the future has the operation's.
        """
        return self._future(self.result)

    def get_future_result(self) -> Any:
        """A future of how the operation ended, as torch's WorkResult: 0 without an error, 1 by a timeout, 2 by another error.

        - Blocks: never; the future does.
        - Errors: none; the result is a number.
        """
        return self._future(self._outcome)

    def _end(self, seconds: float | None) -> None:
        try:
            self._pending.wait(seconds)
        except TimeoutError as error:
            if isinstance(error, DistError):
                raise
            text = f"the operation has not ended within {seconds} s (the timeout of this wait); it continues"
            raise WaitTimeout(text) from None
        if self._settle is not None:
            self._settled()

    def _settled(self) -> None:
        with _settling:
            if self._settle is not None:
                self._settle()
                self._settle = None  # last: a thread that reads None does not wait for the lock

    def _outcome(self) -> int:
        """Waits for the end; how it ended, as torch's WorkResult."""
        try:
            self._end(None)
        except CollectiveTimeout:
            return _TIMEOUT
        except DistError:
            return _COMM_ERROR
        return _SUCCESS

    def _future(self, value: Callable[[], Any]) -> Any:
        future = new_future()

        def complete() -> None:
            try:
                found = value()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        if self.is_completed():
            complete()
        else:
            job = threads.Job(followed(complete))
            try:
                threads.start(threading.Thread(target=job, name="arraycomm future", daemon=True))
            except BaseException:
                job.drop()
                raise
        return future


# Held while results are copied into the callers' arrays. For several Works as one, this waits for each of them.
_settling = threading.RLock()


class Settling(Work):
    """A Work whose results are still to be copied into the arrays. If the Work is dropped before, a thread copies them."""

    __slots__ = ()

    def __del__(self) -> None:
        if self._settle is not None:  # the thread queries the outcome: that notifies watchers, which take locks
            kept = Work(self._pending, self._arrays, self._settle)
            finish("an operation on strided arrays or lists", lambda: _settle_late(kept))


_warned: list[bool] = []


def _settle_late(work: Work) -> None:
    if work.exception() is not None:
        return
    if not _warned:
        _warned.append(True)
        log().warning("the Work of an asynchronous operation on strided arrays or lists was dropped: the program cannot know "
                      "when its result is there; keep it, and call wait() (said once)")
    work.synchronize()


class Message(Work):
    """The Work of isend and irecv: without a future, as in torch."""

    __slots__ = ()

    def get_future(self) -> Any:
        raise RuntimeError("Work::getFuture not implemented: messages have none; call wait()")

    def get_future_result(self) -> Any:
        raise RuntimeError("Work::getFutureResult not implemented: messages have none; call wait()")


class Receive(Message):
    """The Work of irecv."""

    __slots__ = ()

    def source_rank(self) -> int:
        self._end(None)
        return int(self._pending.result().source)


ENDED = Several(())  # for operations that end inside their call


def ended(pending: Any, async_op: bool, arrays: Sequence[Any], settle: Callable[[], Any] | None = None) -> Work | None:
    """A collective's return value: None after a synchronous call, which has ended, or its Work."""
    if async_op:
        return Work(pending, arrays) if settle is None else Settling(pending, arrays, settle)
    if settle is not None:
        settle()
    return None


def duration(timeout: object) -> object:
    """A float of seconds, which torch accepts too, as a timedelta; other values unchanged."""
    return timedelta(seconds=timeout) if isinstance(timeout, float) else timeout


def _seconds(timeout: object) -> float | None:
    timeout = duration(timeout)
    if not isinstance(timeout, timedelta):
        raise TypeError(f"Expected timeout argument to be of type datetime.timedelta, got {timeout!r}")
    return timeout.total_seconds() or None

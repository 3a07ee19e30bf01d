"""Work: the collectives' return value for torch, with torch futures."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from arraycomm.core.base import threads
from arraycomm.distributed.future import followed
from arraycomm.distributed.operations.work import Work as FacadeWork

_NO_LIMIT = timedelta(0)


class Futures:
    """Completes the futures of a group's operations in its own thread; operations end in the order of their calls.

    The thread starts with the first future. Callbacks of the futures run in it.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def of(self, value: Callable[[], Any]) -> torch.futures.Future[Any]:
        """A future of value(), which may block. Its error is one that C++ sees too, as a RuntimeError with the same text."""
        begin: Any = torch.futures.Future()
        # then() and not set_exception(), whose error a waiter in C++ (as DistributedDataParallel) treats as a value.
        future = begin.then(lambda _: value())
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="arraycomm futures", daemon=True)
                threads.start(self._thread)
            # Not in the thread: requested by a callback, which may wait for it here, or after close().
            here = self._closed or threading.current_thread() is self._thread
            if not here:
                self._waiting.put(threads.Job(followed(lambda: begin.set_result(None))))
        if here:
            begin.set_result(None)
        return future

    def _run(self) -> None:
        while (begin := self._waiting.get()) is not None:
            begin()

    def close(self) -> None:
        """Ends the thread. Futures that were asked for before are completed. Idempotent."""
        with self._lock:
            if self._thread is not None and not self._closed:
                self._waiting.put(None)
            self._closed = True

    def join(self) -> None:
        """After close(): waits until all are complete and their callbacks have ended. Not in a callback."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


class Work(torch.distributed.Work):
    """The facade's Work as torch's, in Python and, by the names that torch looks for, in C++."""

    def __init__(self, work: FacadeWork, futures: Futures) -> None:
        super().__init__()
        self._work, self._futures = work, futures

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        return self._work.wait(timeout)

    def get_future(self) -> torch.futures.Future[Any]:
        """Of result(). RuntimeError for messages, as in torch."""
        return self._futures.of(self._work.result)

    def get_future_result(self) -> torch.futures.Future[Any]:
        """Of how it ended, as torch's WorkResult: 0 well, 1 a timeout, 2 any other error."""
        return self._futures.of(self._work._outcome)


def _passed_on(name: str) -> Callable[[Work], Any]:
    return lambda self: getattr(self._work, name)()


for _name in ("synchronize", "block_current_stream", "is_completed", "is_success", "exception", "result", "source_rank",
              "_source_rank"):
    setattr(Work, _name, _passed_on(_name))

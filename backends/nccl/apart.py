"""Apart: a call of NCCL's that may wait for other ranks, in a thread of its own, so that who waits for it can give up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from arraycomm.core.base import threads


class Apart:
    """Begins the call. A thread that was left goes on until NCCL returns, and does nothing else then but `too_late`."""

    def __init__(self, name: str, call: Callable[[], int], on: Callable[[], AbstractContextManager[None]],
                 too_late: Callable[[], None] | None) -> None:
        """on: the context of the call, the thread's current device."""
        self._call, self._on, self._too_late = call, on, too_late
        self._lock, self._ended, self._left = threading.Lock(), threading.Event(), False
        self._code = 0
        self._error: BaseException | None = None
        threads.start(threading.Thread(target=self._run, name=f"arraycomm {name}", daemon=True))

    def _run(self) -> None:
        try:
            with self._on():
                self._code = self._call()
        except BaseException as error:
            self._error = error
        with self._lock:
            self._ended.set()
            left = self._left
        if left and self._too_late is not None:
            self._too_late()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended by then."""
        return self._ended.wait(seconds)

    def result(self) -> int:
        """What the call gave, when it has ended. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._code

    def leave(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._left, ended = True, self._ended.is_set()
        if ended and self._too_late is not None:
            self._too_late()

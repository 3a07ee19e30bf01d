"""Starting threads, which can fail, and ending those that run other people's code before the interpreter goes."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable

from .errors import ResourceError
from .log import log

_PATIENCE = 10.0  # s that the end of the process waits without a word


def start(thread: threading.Thread) -> None:
    """Raises ResourceError where the process may not have one more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceError(f"cannot start the thread {thread.name!r}: no more threads or memory for its stack are allowed "
                            "(`ulimit -u`, `ulimit -v`, or the control group's limits)") from error


class Job:
    """What a thread is to run once, and the end of the process waits for: a thread that Python ends inside of C++, as in a
    callback of torch's futures, ends the process by SIGABRT.

    Without locks of threading, so that it may be made in a garbage collection.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        self._run, self._running = run, _thread.allocate_lock()
        self.thread = 0
        self._running.acquire()
        _jobs.append(self)

    def __call__(self) -> None:
        self.thread = _thread.get_ident()
        try:
            self._run()
        finally:
            self.drop()

    def drop(self) -> None:
        """It has been run, or will not be."""
        with contextlib.suppress(ValueError):  # in a child that its thread has forked
            _jobs.remove(self)
        self._running.release()

    def wait(self, seconds: float = -1) -> bool:
        """Whether it has ended within this time; -1: however long that takes."""
        if self.thread == _thread.get_ident():
            return True
        ended = self._running.acquire(timeout=seconds)
        if ended:
            self._running.release()
        return ended


_jobs: deque[Job] = deque()


def finish() -> None:
    """Waits for the jobs of other threads that there are now."""
    for job in list(_jobs):
        if not job.wait(_PATIENCE):
            log().warning("waiting for thread %#x of arraycomm: a callback of a future, or an operation whose result is still to "
                          "be copied, has not ended", job.thread)
            job.wait()


atexit.register(finish)  # before the endpoints', which end what is under way: it runs behind them
os.register_at_fork(after_in_child=_jobs.clear)  # a child made by fork has none of the threads

"""Starts threads, and at exit waits for those that run foreign code before the interpreter is finalised."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from .errors import ResourceError
from .log import log

_PATIENCE = 10.0  # s that the exit handler waits before it logs a notice
_LAST = 1.0  # s that a thread waits for the end of the interpreter, and by which whoever waits for that thread is delayed


def start(thread: threading.Thread) -> None:
    """Starts the thread. Raises ResourceError if the process may not have another thread."""
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceError(f"cannot start the thread {thread.name!r}: no more threads or memory for its stack are allowed "
                            "(`ulimit -u`, `ulimit -v`, or the control group's limits)") from error


class Job:
    """A function that a thread runs once, and that the exit handler waits for: if Python ends a thread inside C++, as in a
    callback of torch's futures, the process dies by SIGABRT.

    It uses no locks of threading, so it can be made during garbage collection.
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
        """Called when the job has been run or will not be run."""
        with contextlib.suppress(ValueError):  # in a child forked by the job's thread
            _jobs.remove(self)
        self._running.release()

    def wait(self, seconds: float = -1) -> bool:
        """Whether the job has ended within this timeout; -1: no timeout."""
        if self.thread == _thread.get_ident():
            return True
        if ended := self._running.acquire(timeout=seconds):
            self._running.release()
        return ended


_jobs: deque[Job] = deque()


def outlast() -> None:
    """Called with the error of an operation: once the interpreter exits, keeps a daemon thread of the program from reporting it.

    Python ends such threads at any line, and one that it ends while it writes to stderr keeps the stream's lock: then the
    process dies by SIGABRT.
    """
    here, exits = threading.current_thread(), not threading.main_thread().is_alive()
    if exits and here.daemon and all(job.thread != here.ident for job in list(_jobs)):
        time.sleep(_LAST)


def finish() -> None:
    """Waits for the current jobs of other threads."""
    for job in list(_jobs):
        if not job.wait(_PATIENCE):
            log().warning("waiting for thread %#x of arraycomm: a callback of a future, or an operation whose result is still to "
                          "be copied, has not ended", job.thread)
            job.wait()


atexit.register(finish)  # registered before the endpoints' handlers, so it runs after them: they end pending operations
os.register_at_fork(after_in_child=_jobs.clear)  # a forked child has none of the threads

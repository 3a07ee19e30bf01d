"""Completes an operation whose Work the program has dropped, in a thread."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable

from .errors import Aborted, DistError
from .log import log
from .threads import Job


def finish(operation: str, wait: Callable[[], object]) -> None:
    """Calls wait() in a new thread and logs errors. Safe in a Work's __del__ during garbage collection, when threading's
    locks may be held.

    Raises RuntimeError if no thread can be started.
    """
    if sys.is_finalizing():
        return
    job = Job(lambda: _alone(operation, wait))
    try:
        _thread.start_new_thread(job, ())
    except RuntimeError:
        job.drop()
        raise


def _alone(operation: str, wait: Callable[[], object]) -> None:
    try:
        wait()
    except DistError as error:
        if not isinstance(error, Aborted):  # every later call raises it; after close() it is expected
            log().warning("%s, whose Work was dropped: %s", operation, error)

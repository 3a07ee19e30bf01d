"""What remains to be done here when an operation has ended whose Work the program has dropped: a thread does it."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable

from .errors import Aborted, DistError
from .log import log
from .threads import Job


def finish(operation: str, wait: Callable[[], object]) -> None:
    """wait(), in a thread of its own. What goes wrong is logged. For a Work's __del__: in a garbage collection, too, in which
    threading's locks may be held.

    Raises RuntimeError where no thread can be started.
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
        if not isinstance(error, Aborted):  # of which every later call tells, and close() tells nobody
            log().warning("%s, whose Work nobody kept: %s", operation, error)

"""Starting threads: the one thing of theirs that can fail."""

from __future__ import annotations

import threading

from .errors import ResourceError


def start(thread: threading.Thread) -> None:
    """Raises ResourceError where the process may not have one more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceError(f"cannot start the thread {thread.name!r}: no more threads or memory for its stack are allowed "
                            "(`ulimit -u`, `ulimit -v`, or the control group's limits)") from error

"""What an object of the parent's says to a forked child."""

from __future__ import annotations

import os
from collections.abc import Callable

import arraycomm


def refused_after_fork(use: Callable[[], object], close: Callable[[], object]) -> bool:
    """True when `use` raises a RuntimeError that names the fork in a child, which then can `close`."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            use()
        except RuntimeError as error:
            code = 0 if "fork" in str(error) else 2
        try:
            close()
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def names_the_fork(use: Callable[[], object]) -> bool:
    """Whether a use of the parent's group, in the child, is refused by that."""
    try:
        use()
    except RuntimeError as error:
        return "made by fork" in str(error) and not isinstance(error, arraycomm.DistError)
    return False

"""What programs have under way on GPUs. XLA does not hear of it where an operation fails after it was enqueued."""

from __future__ import annotations

import weakref
from typing import Any

_movers: weakref.WeakSet[Any] = weakref.WeakSet()  # on which something was enqueued since somebody looked


def enqueued(mover: Any) -> None:
    """By a program, on a communicator that tells its failure (NCCL's)."""
    if hasattr(mover, "failure"):
        _movers.add(mover)


def check() -> None:
    """Raises what befell operations of programs that have ended by now: their results are not complete."""
    while _movers:
        failure = _movers.pop().failure
        if failure is not None:
            raise failure

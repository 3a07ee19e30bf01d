"""Tasks that fail in every way a task can: for the tests of the worlds themselves."""

from __future__ import annotations

import os
import time

import numpy as np

from .worlds import Context


def hang(context: Context) -> None:
    if context.rank == 1:
        stuck_here()


def stuck_here() -> None:
    while True:
        time.sleep(60)


def die(context: Context) -> None:
    if context.rank == 1:
        os._exit(3)
    context.group.barrier()


def wrong(context: Context) -> None:
    context.check(context.rank != 1, "one and one is two")
    context.same("bits", np.array([context.rank // 2]))


def unlike(context: Context) -> None:
    """Refusals that are none, or others."""
    def other() -> None:
        raise ValueError("another text")

    context.raises("nothing", ValueError, "", lambda: None)
    context.raises("text", ValueError, "the text", other)
    context.raises("kind", (TypeError, KeyError), "", other)
    context.raises("right", ValueError, "^another.text$", other)


def stumble(context: Context) -> None:
    if context.rank == 1:
        raise KeyError("the reason")
    context.group.barrier()

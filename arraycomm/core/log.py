"""The package's logger, loaded when there is something to say: `logging` takes as long to load as all of init()."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def log() -> Logger:
    """The logger "arraycomm"."""
    from logging import getLogger

    return getLogger("arraycomm")

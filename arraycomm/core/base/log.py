"""The package's logger, loaded for the first message: importing `logging` takes as long as all of init()."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger


_WARNING = 30  # logging.WARNING


class _Stderr:
    """A fallback logger for when no module can be imported, for example because descriptors have run out."""

    def warning(self, text: str, *arguments: object) -> None:
        print(text % arguments, file=sys.stderr)

    error = critical = warning

    def info(self, text: str, *arguments: object) -> None:
        """No output below a warning, as `logging` without a configuration."""

    debug = info

    def log(self, level: int, text: str, *arguments: object) -> None:
        (self.warning if level >= _WARNING else self.info)(text, *arguments)

    def exception(self, text: str, *arguments: object) -> None:
        self.warning(text, *arguments)
        sys.__excepthook__(*sys.exc_info())


def log() -> Logger | Any:
    """The logger "arraycomm"."""
    try:
        from logging import getLogger
    except (OSError, ImportError, MemoryError):
        return _Stderr()
    return getLogger("arraycomm")

"""The package's logger, loaded when there is something to say: `logging` takes as long to load as all of init()."""

from __future__ import annotations

import sys

from .typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger


_WARNING = 30  # logging.WARNING


class _Stderr:
    """What is left to say things with where no module can be loaded any more: descriptors are out, say."""

    def warning(self, text: str, *arguments: object) -> None:
        print(text % arguments, file=sys.stderr)

    error = critical = warning

    def info(self, text: str, *arguments: object) -> None:
        """As `logging` does without a configuration: nothing below a warning."""

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

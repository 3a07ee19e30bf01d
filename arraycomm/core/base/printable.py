"""Text that others wrote, as it may stand in an error, a log or on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from .digest import sha256

_SHOWN = 8  # ranks that a name lists


def printable(text: str | bytes) -> str:
    """Without control characters, line ends among them, which are escaped as Python writes them: text from the wire may hold what
    changes a terminal, or what looks like a line of somebody else. Bytes that are no UTF-8 are escaped, too.
    """
    whole = text if isinstance(text, str) else text.decode(errors="backslashreplace")
    if whole.isprintable():
        return whole
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in whole)


def numbered(ranks: Sequence[int]) -> str:
    """A list of ranks as it may stand in a name: short, and of no other list."""
    if len(ranks) <= _SHOWN:
        return ",".join(map(str, ranks))
    return f"{ranks[0]}..{ranks[-1]}:{sha256(','.join(map(str, ranks)).encode()).hexdigest()[:16]}"

"""Escapes text from other processes for errors, logs and terminals."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

_SHOWN = 8  # maximum number of ranks in a name


def printable(text: str | bytes) -> str:
    """Escapes control characters, including line ends, as Python does: text from the network may contain terminal control
    sequences or forged log lines. Bytes that are not UTF-8 are escaped too.
    """
    whole = text if isinstance(text, str) else text.decode(errors="backslashreplace")
    if whole.isprintable():
        return whole
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in whole)


def numbered(ranks: Sequence[int]) -> str:
    """A short text for a list of ranks, for use in names: different lists give different texts."""
    if len(ranks) <= _SHOWN:
        return ",".join(map(str, ranks))
    return f"{ranks[0]}..{ranks[-1]}:{sha256(','.join(map(str, ranks)).encode()).hexdigest()[:16]}"

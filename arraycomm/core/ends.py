"""Ends of ranks, noted by the launcher in the store that it serves: a rank that ended before it came there has left no will."""

from __future__ import annotations

from .gathering import Gathering
from .printable import printable
from .store.base import Store

_ENDS = "arraycomm-launch/ended"


def note(store: Store, rank: int, size: int, place: str, how: str) -> None:
    """For launchers, of one of their `size` ranks. store: without a prefix. May return before the store has it, as set() does."""
    store.set(f"{_ENDS}/{rank}", f"{place}\0{how}")
    store.set(_ENDS, str(size))  # after the other: who asks, asks for this one first


def tell(store: Store, gathering: Gathering, stage: str) -> None:
    """Ends the gathering's stage where a rank has ended that did not come to it. Not of a world of some ranks only, which has
    numbers of its own."""
    if not store.check([_ENDS]) or int(store.get(_ENDS)) != gathering.size:
        return
    for rank in gathering.absent(stage):
        if store.check([key := f"{_ENDS}/{rank}"]):
            place, how = map(printable, store.get(key).split(b"\0", 1))
            gathering.bury(rank, place, f"{how} before it had come")
            return

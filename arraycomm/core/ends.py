"""What launchers note in the store that one of them serves: nodes that were refused, and ends of ranks, as one that ended before
it came there has left no will."""

from __future__ import annotations

from .errors import DistStoreError
from .gathering import Gathering
from .printable import printable
from .store.base import Store

_ENDS = "arraycomm-launch/ended"
_REFUSED = "arraycomm-launch/refused"
_TURNED_AWAY = "arraycomm-launch/turned away"
_NONE = "-"  # there: all ranks have met, and no refusal concerns them any more


def note(store: Store, rank: int, size: int, place: str, how: str) -> None:
    """For launchers, of one of their `size` ranks. store: without a prefix. May return before the store has it, as set() does."""
    store.set(f"{_ENDS}/{rank}", f"{place}\0{how}")
    store.set(_ENDS, str(size))  # after the other: who asks, asks for this one first


def refuse(store: Store, why: str) -> None:
    """Of a node: the ranks that wait for its ranks need not wait. Nothing once all have met."""
    store.compare_set(_REFUSED, "", why)


def turn_away(store: Store, why: str) -> None:
    """Of somebody whose place is taken: those who wait go on, and say it."""
    store.compare_set(_TURNED_AWAY, "", why)


def turned_away(store: Store) -> str:
    """What it said first, "" for nobody."""
    return printable(store.get(_TURNED_AWAY)) if store.check([_TURNED_AWAY]) else ""


def met(store: Store) -> None:
    """All ranks of the job have come."""
    store.set(_REFUSED, _NONE)


def tell(store: Store, gathering: Gathering, stage: str) -> None:
    """Ends the gathering's stage where a rank has ended that did not come to it. Not of a world of some ranks only, which has
    numbers of its own. Raises DistStoreError where a node was refused: its ranks will not come."""
    if store.check([_REFUSED]) and (why := printable(store.get(_REFUSED))) != _NONE:
        raise DistStoreError(f"rank {gathering.rank} of {gathering.size}: {why}")
    if not store.check([_ENDS]) or int(store.get(_ENDS)) != gathering.size:
        return
    for rank in gathering.absent(stage):
        if store.check([key := f"{_ENDS}/{rank}"]):
            place, how = map(printable, store.get(key).split(b"\0", 1))
            gathering.bury(rank, place, f"{how} before it had come")
            return

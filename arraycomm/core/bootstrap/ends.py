"""The launchers' entries in the store: rejected nodes, and exit reports of ranks. A rank that exits before it connects has no
last-will record there, so its launcher writes the report. Signed like the ranks' entries (gathering.py)."""

from __future__ import annotations

from ..base.errors import DistStoreError
from ..base.printable import printable
from .gathering import Gathering, sign, signed
from .store.base import Store

_ENDS = "arraycomm-launch/ended"
_REFUSED = "arraycomm-launch/refused"
_TURNED_AWAY = "arraycomm-launch/turned away"
_REFUSAL = "a launcher's note of a refused node"
_NONE = b"-"  # value after the rendezvous: later rejections do not matter


def note(store: Store, rank: int, size: int, place: str, how: str, secret: bytes | None = None) -> None:
    """Writes the exit report of a rank; for launchers. store: without a prefix."""
    store.set(f"{_ENDS}/{rank}", sign(secret, _about(rank), f"{size}\0{place}\0{how}".encode(errors="backslashreplace")))
    store.set(_ENDS, "")  # written last, because readers check this key first


def refuse(store: Store, why: str, secret: bytes | None = None) -> None:
    """Reports a rejected node, so that ranks stop waiting for its ranks. No effect after the rendezvous."""
    store.compare_set(_REFUSED, "", sign(secret, _REFUSAL, why.encode(errors="backslashreplace")))


def turn_away(store: Store, why: str) -> None:
    """Reports a duplicate node. Waiting ranks log it and continue to wait."""
    store.compare_set(_TURNED_AWAY, "", why)


def turned_away(store: Store) -> str:
    """The first report of a duplicate node, or ""."""
    return printable(store.get(_TURNED_AWAY)) if store.check([_TURNED_AWAY]) else ""


def met(store: Store) -> None:
    """Called when the rendezvous of all ranks is complete."""
    store.set(_REFUSED, _NONE)


def tell(store: Store, gathering: Gathering, stage: str) -> None:
    """Ends the gathering's stage where a rank has ended that did not come to it. Not of a world of some ranks only, which has
    numbers of its own. Raises DistStoreError where a node was refused: its ranks will not come; AuthFailed for a note without a
    signature."""
    if store.check([_REFUSED]) and (told := store.get(_REFUSED)) != _NONE:
        raise DistStoreError(f"rank {gathering.rank} of {gathering.size}: {printable(signed(gathering.secret, _REFUSAL, told))}")
    for rank in gathering.absent(stage) if store.check([_ENDS]) else ():
        if store.check([key := f"{_ENDS}/{rank}"]):
            size, place, how = map(printable, signed(gathering.secret, _about(rank), store.get(key)).split(b"\0", 2))
            if size == str(gathering.size):
                gathering.bury(rank, place, f"{how} before it joined")
            return


def _about(rank: int) -> str:
    return f"the launcher's note of the end of rank {rank}"

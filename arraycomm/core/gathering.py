"""The ranks of one world as they gather in a store: they wait for each other, and hear at once of one that fails.

A stage is over when one key is written: by the last rank that comes, or instead by the first that fails. A rank that is
killed cannot write; where the store notices (TCPStore does), it writes for it: the rank's last will.
"""

from __future__ import annotations

import contextlib
import os
import socket
from datetime import timedelta

from .errors import DistStoreError, PeerLost
from .store.base import Store
from .store.connections import StoreLost

MEET, CARDS = STAGES = ("came", "cards")
_COMPLETE = b"complete"
_LONGEST = 2000  # characters of an error that the others are told


class Gathering:
    """Keeps nothing itself. store: of this world alone."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self.rank, self.size = store, rank, size

    def enter(self) -> None:
        """If this process ends before leave(), the others hear of it, in a store that notices."""
        if self.size > 1:
            self._store.will(f"rank {self.rank}", dict.fromkeys(_ends(), self._news("its process has ended")),
                             posted=True)

    def leave(self) -> None:
        """All has gone well here."""
        with contextlib.suppress(DistStoreError):  # rank 0 may be through with everything already, and the store closed
            if self.size > 1:
                self._store.will(f"rank {self.rank}", {}, posted=True)

    def fail(self, error: BaseException) -> None:
        """Tells the ranks that wait, or will. Not that the store was lost: another one may stand in its place by now."""
        if isinstance(error, StoreLost):
            return
        news = self._news(f"{type(error).__name__}: {error}"[:_LONGEST].rstrip(": "))
        with contextlib.suppress(DistStoreError):  # the store may be what failed
            for key in _ends() if self.size > 1 else ():
                self._store.compare_set(key, "", news)

    def wait(self, stage: str, seconds: float) -> None:
        """Returns when all ranks have come to this stage. Raises PeerLost when one fails, DistStoreError at the timeout."""
        self._store.set(f"{stage}/{self.rank}", "")
        if self._store.add(stage, 1) == self.size:
            end = self._store.compare_set(_end(stage), "", _COMPLETE)
        else:
            end = self._store.get_within(_end(stage), timedelta(seconds=seconds))
        if end != _COMPLETE:
            lost, place, why = end.decode(errors="replace").split("\0", 2)
            raise PeerLost(f"rank {self.rank} of {self.size}: rank {lost} ({place}) failed while the group was set up: {why}",
                           ranks=(int(lost),))

    def absent(self, stage: str) -> list[int]:
        return [rank for rank in range(self.size) if not self._store.check([f"{stage}/{rank}"])]

    def _news(self, why: str) -> str:
        return f"{self.rank}\0host {socket.gethostname()}, pid {os.getpid()}\0{why}"


def _end(stage: str) -> str:
    return f"{stage}/end"


def _ends() -> list[str]:
    return [_end(stage) for stage in STAGES]

"""The ranks of one world as they gather in a store: they wait for each other, and hear at once of one that fails.

A stage is over when one key is written: by the last rank that comes, or instead by the first that fails. A rank that is
killed cannot write; where the store notices (TCPStore does), it writes for it: the rank's last will.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from .errors import DistStoreError, PeerLost
from .store.base import Store
from .store.connections import StoreLost

MEET, CARDS = STAGES = ("came", "cards")
_COMPLETE = b"complete"
_LONGEST = 2000  # characters of an error that the others are told
_SHOWN = 20  # ranks that are named
_ABSENT = "these ranks did not come"  # in the error of who gives up waiting, by which the others know it
_WATCH = 0.5  # s between looks at whether the others live, for stores that do not notice an end


class TooLate(DistStoreError):
    """Another rank gave up waiting, before all had come. It may try again: with another stage."""


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
        with contextlib.suppress(DistStoreError):  # the store may be what failed
            self._end_all(self._news(f"{type(error).__name__}: {error}"[:_LONGEST].rstrip(": ")))

    def bury(self, rank: int, place: str, why: str) -> None:
        """The same for a rank that cannot say it itself."""
        self._end_all(_news(rank, place, why))

    def _end_all(self, news: str) -> None:
        for key in _ends() if self.size > 1 else ():
            self._store.compare_set(key, "", news)

    def wait(self, stage: str, seconds: float, advice: str | Callable[[Sequence[int]], str] = "see what they printed",
             watch: Callable[[], None] | None = None, result: Callable[[], bytes] = bytes) -> bytes:
        """Returns when all ranks have come to this stage: the result that the last one made. `watch` is called while it waits,
        and may raise.

        Raises PeerLost when one fails, TooLate when another one gave up waiting, DistStoreError at the timeout, which names
        those that did not come and gives the advice, perhaps made of those.
        """
        self._store.set(f"{stage}/{self.rank}", "")
        if self._store.add(stage, 1) == self.size:
            end = self._store.compare_set(_end(stage), "", _COMPLETE + result())
        else:
            end = self._await_end(stage, seconds, advice, watch)
        if not end.startswith(_COMPLETE):
            lost, place, why = end.decode(errors="replace").split("\0", 2)
            if _ABSENT in why:
                raise TooLate(f"rank {self.rank} of {self.size}: rank {lost} ({place}) gave up waiting: {why}")
            raise PeerLost(f"rank {self.rank} of {self.size}: rank {lost} ({place}) failed while the group was set up: {why}",
                           ranks=(int(lost),))
        return end[len(_COMPLETE):]

    def _await_end(self, stage: str, seconds: float, advice: str | Callable[[Sequence[int]], str],
                   watch: Callable[[], None] | None) -> bytes:
        end = time.monotonic() + seconds
        while watch is not None and end - time.monotonic() > _WATCH:
            with contextlib.suppress(DistStoreError):
                return self._store.get_within(_end(stage), timedelta(seconds=_WATCH))
            self._store.check([_end(stage)])  # raises where it is the store that failed
            watch()
        try:
            return self._store.get_within(_end(stage), timedelta(seconds=max(end - time.monotonic(), 0.001)))
        except StoreLost:
            raise
        except DistStoreError as error:
            absent = self.absent(stage)
            if not absent:
                raise
            shown = ", ".join(map(str, absent[:_SHOWN])) + (", ..." if len(absent) > _SHOWN else "")
            raise DistStoreError(f"rank {self.rank} of {self.size}: timeout after {seconds:.4g} s, {_ABSENT}: {shown}; "
                                 f"{advice(absent) if callable(advice) else advice}") from error

    def absent(self, stage: str) -> list[int]:
        """Who has not come to this stage."""
        return [rank for rank in range(self.size) if not self._store.check([f"{stage}/{rank}"])]

    def forget(self, stage: str) -> None:
        """Takes what this stage wrote out of the store. One rank calls it, when all have left."""
        for key in (stage, *_ends(), *(f"{stage}/{rank}" for rank in range(self.size))):
            self._store.delete_key(key)

    def _news(self, why: str) -> str:
        return _news(self.rank, f"host {socket.gethostname()}, pid {os.getpid()}", why)


def _news(rank: int, place: str, why: str) -> str:
    return f"{rank}\0{place}\0{why}"


def _end(stage: str) -> str:
    return f"{stage}/end"


def _ends() -> list[str]:
    return [_end(stage) for stage in STAGES]

"""The rendezvous of the ranks of one world in a store: they wait for each other, and are notified at once of a failure.

A stage ends when one key is written: by the last rank that arrives, or by the first that fails. A killed rank cannot
write. A store with failure detection (TCPStore) then writes the rank's last-will record.

Other processes may be able to write to the store: torch's has no authentication. So the value that ends a stage is signed
with the job's secret.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import islice

from ..base.errors import AuthFailed, DistStoreError, PeerLost
from ..base.notice import Notice
from ..base.printable import printable
from .handshake import TAG_BYTES
from .store.base import Store
from .store.connections import StoreLost

MEET, CARDS = STAGES = ("came", "cards")
_COMPLETE = b"complete"
_LONGEST = 2000  # maximum characters of an error in the store
_SHOWN = 20  # maximum number of ranks in a message
_ABSENT = "these ranks did not join"  # marks the error of a rank that timed out
_WATCH = 0.5  # s between liveness checks, for stores without failure detection


def sign(secret: bytes | None, about: str, content: bytes) -> bytes:
    """The content followed by its signature in hexadecimal: HMAC-SHA256 (RFC 2104) over subject and content."""
    return content + hmac.digest(secret or b"", b"arraycomm stored\0" + about.encode() + b"\0" + content, "sha256").hex().encode()


def signed(secret: bytes | None, about: str, value: bytes) -> bytes:
    """The content of a value made by sign(). Raises AuthFailed if the signature is not of this secret and subject."""
    content = value[: -2 * TAG_BYTES]
    if hmac.compare_digest(value, sign(secret, about, content)):
        return content
    raise AuthFailed(f"the store holds {about} without the signature of this job: a rank has another secret (give all the same "
                     "ARRAYCOMM_SECRET or ARRAYCOMM_SECRET_FILE), or another program writes to the store")


def agreed(store: Store, key: str, secret: bytes | None, about: str, content: bytes) -> bytes:
    """Writes the content if the key is missing; returns the first writer's content. Raises AuthFailed as signed()."""
    return signed(secret, about, store.compare_set(key, "", sign(secret, about, content)))


class TooLate(DistStoreError):
    """Another rank timed out before all had arrived. The caller may retry with another stage."""


class Gathering:
    """Stateless. store: used by these ranks only. secret: the job's, for signatures.
    members: world ranks; None: they are the world."""

    def __init__(self, store: Store, rank: int, size: int, secret: bytes | None = None,
                 members: Sequence[int] | None = None) -> None:
        self._store, self.rank, self.size, self.secret, self._members = store, rank, size, secret, members

    def enter(self) -> None:
        """Registers the last-will record: if this process ends before leave(), the store notifies the peers."""
        if self.size > 1:
            news = self._news("its process has ended")
            self._store._will(f"rank {self.rank}", {_end(stage): self._ending(stage, news) for stage in STAGES})

    def leave(self) -> None:
        """Withdraws the last-will record, after success."""
        with contextlib.suppress(DistStoreError):  # rank 0 may have finished and closed the store
            if self.size > 1:
                self._store._will(f"rank {self.rank}", {})

    def fail(self, error: BaseException) -> None:
        """Notifies the ranks of this stage of the error; for PeerLost, of the lost rank. Not for a lost store: its address
        may have a new store by now."""
        if isinstance(error, StoreLost):
            return
        why = f"{type(error).__name__}: {error}"[:_LONGEST].rstrip(": ")
        news = self._news(why)
        if isinstance(error, PeerLost) and error.ranks:
            news = _news(error.ranks[0], f"as rank {self.rank} says", why)
        with contextlib.suppress(DistStoreError):  # the store may be what failed
            self._end_all(news)

    def bury(self, rank: int, place: str, why: str) -> None:
        """As fail(), on behalf of a rank that has died."""
        self._end_all(_news(rank, place, why))

    def _end_all(self, news: str) -> None:
        for stage in STAGES if self.size > 1 else ():
            self._store.compare_set(_end(stage), "", self._ending(stage, news))

    def _ending(self, stage: str, content: str) -> str:
        """The signed value that ends a stage, for the key or a last-will record."""
        return sign(self.secret, self._about(stage), content.encode()).decode()

    def _about(self, stage: str) -> str:
        return f"the end of stage {stage!r} of {self.size} ranks"

    def wait(self, stage: str, seconds: float, advice: str | Callable[[Sequence[int]], str] = "see what they printed",
             watch: Callable[[], None] | None = None, content: bytes = b"", result: Callable[[], bytes] = bytes,
             where: Callable[[Sequence[int]], str] = lambda absent: "") -> bytes:
        """Returns when all ranks have come to this stage: the result that the last one made. `watch` is called while it waits,
        and may raise. content: what this rank leaves there, under the stage's name and its number. where: of ranks that have not
        come, what the notice of a long wait adds.

        Raises PeerLost when one fails, TooLate when another one gave up waiting, DistStoreError at the timeout, which names
        those that did not come and gives the advice, perhaps made of those, AuthFailed where the end is not signed.
        """
        self._store.set(f"{stage}/{self.rank}", content)
        if self._store.add(stage, 1) == self.size:
            end = agreed(self._store, _end(stage), self.secret, self._about(stage), _COMPLETE + result())
        else:
            end = signed(self.secret, self._about(stage), self._await_end(stage, seconds, advice, watch, where))
        if not end.startswith(_COMPLETE):
            lost, place, why = map(printable, end.split(b"\0", 2))
            if _ABSENT in why:
                raise TooLate(f"rank {self.rank} of {self.size}: rank {lost} ({place}) gave up waiting: {why}")
            raise PeerLost(f"rank {self.rank} of {self.size}: rank {lost} ({place}) failed while the group was set up: {why}",
                           ranks=tuple(rank for rank in (int(lost),) if rank < self.size),  # else it was told another size
                           members=self._members)
        return end[len(_COMPLETE):]

    def _await_end(self, stage: str, seconds: float, advice: str | Callable[[Sequence[int]], str],
                   watch: Callable[[], None] | None, where: Callable[[Sequence[int]], str]) -> bytes:
        end = time.monotonic() + seconds
        notice = Notice(lambda waited: self._notice(stage, waited, where))
        while end - time.monotonic() > (pause := min(notice.left(), math.inf if watch is None else _WATCH)):
            try:
                return self._store._get_within(_end(stage), timedelta(seconds=pause))
            except DistStoreError as error:
                if isinstance(error, StoreLost):  # the next call would go to another one, which knows nothing of this rank
                    raise
            with contextlib.suppress(NotImplementedError):
                self._store.check([_end(stage)])  # raises where it is the store that failed
            if watch is not None:
                watch()
            notice.tell()
        try:
            return self._store._get_within(_end(stage), timedelta(seconds=max(end - time.monotonic(), 0.001)))
        except StoreLost:
            raise
        except DistStoreError as error:
            absent = self._absent(stage)
            if not absent:
                raise
            raise DistStoreError(f"rank {self.rank} of {self.size}: timeout after {seconds:.4g} s, {_ABSENT}: {_shown(absent)}; "
                                 f"{advice(absent) if callable(advice) else advice}") from error

    def _absent(self, stage: str) -> list[int]:
        """The absent ranks, at most as many as the message names: the world size may be a million by mistake."""
        return list(islice(self.absent(stage), _SHOWN + 1))

    def _notice(self, stage: str, waited: float, where: Callable[[Sequence[int]], str]) -> str:
        try:
            absent = self._absent(stage) if self._speaks(stage) else []
            added = where(absent) if absent else ""
        except (DistStoreError, NotImplementedError):
            return ""  # DistStoreError: the wait raises it too; NotImplementedError: a program's store with few methods
        if not absent:
            return ""
        who = f"rank{'s' * (len(absent) > 1)} {_shown(absent)}"
        return (f"rank {self.rank} of {self.size} has waited {waited:.3g} s for {who}{added}; they meet in the "
                f"{self._store._where()}")

    def _speaks(self, stage: str) -> bool:
        """Whether this rank logs the notice: the first rank of its host to wait that long."""
        return self._store.compare_set(_told(stage), "", str(self.rank)) == str(self.rank).encode()

    def absent(self, stage: str) -> Iterator[int]:
        """The ranks that have not arrived at this stage, queried one by one."""
        return (rank for rank in range(self.size) if not self._store.check([f"{stage}/{rank}"]))

    def forget(self, stage: str) -> None:
        """Deletes this stage's keys from the store. One rank calls it after all have left."""
        for key in (stage, _told(stage), *map(_end, STAGES), *(f"{stage}/{rank}" for rank in range(self.size))):
            self._store.delete_key(key)

    def _news(self, why: str) -> str:
        return _news(self.rank, f"host {socket.gethostname()}, pid {os.getpid()}", why)


def _news(rank: int, place: str, why: str) -> str:
    return f"{rank}\0{place}\0{why}"


def _told(stage: str) -> str:
    """The key with the rank of this host that logs the notice."""
    return f"{stage}/told/{socket.gethostname()}"


def _shown(absent: Sequence[int]) -> str:
    return ", ".join(map(str, absent[:_SHOWN])) + (", ..." if len(absent) > _SHOWN else "")


def _end(stage: str) -> str:
    return f"{stage}/end"

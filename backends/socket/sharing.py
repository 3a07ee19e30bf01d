"""How an Endpoint gets the memory that the ranks of a group share on a host: one makes it, the others fetch it over a socket."""

from __future__ import annotations

import io
import math
import os
import select
import socket
import threading
import time
from collections.abc import Iterable, Sequence

from arraycomm.core.base.errors import AuthFailed, DistNetworkError, GroupError
from arraycomm.core.base.notice import Notice
from arraycomm.core.base.typed import Any
from arraycomm.core.bootstrap.auth import Purpose
from arraycomm.core.interface.backend import Watch

from . import segment
from .arrivals import Arrivals
from .outgoing import Outgoing
from .peers import Peers

_LOOK = 0.1  # s between looks at those who are awaited


class Sharing:
    """What Endpoint inherits."""

    rank: int
    size: int
    timeout: float
    node: Any
    peers: Peers
    _lock: threading.Lock
    _changed: threading.Condition
    _news: set[int]
    _offers: segment.Offers
    _arrivals: Arrivals
    _outgoing: Outgoing

    def place(self, rank: int) -> str:
        raise NotImplementedError

    def _check_there(self, other: int, *, may_leave: bool = False, when: str = "") -> None:
        raise NotImplementedError

    def share_segment(self, group_id: int, members: Sequence[int], local_members: Sequence[int], size: int, least: int, *,
                      world: bool = False, watch: Watch | None = None) -> io.FileIO:
        """Shared memory of those members of a group (world ranks) that are on this host, as this rank is; the caller closes it.
        `world`: of all ranks.

        It has `size` bytes, or `least` where a limit of the rank that makes it forbids so long a file.
        The lowest of them makes it and returns when all others have it: nobody may leave while it is needed.
        Raises ResourceError, DistNetworkError, and PeerLost when a member is lost, whichever it is: others may have heard of that
        before they came, and do not come. All come to a world, though one may be through with it, and dead.
        watch: see Communicator.split().
        """
        owner, end = min(local_members), math.inf if watch else time.monotonic() + self.timeout
        if owner != self.rank:
            look = self._watching((owner,) if world else members, watch)
            return self._fetch_segment(owner, group_id, (size, least), look, end)
        made = segment.create(size, least)
        with self._lock:
            self._offers.offer(group_id, made, set(local_members) - {self.rank})
            for sock, hello in self._arrivals.take(group_id, Purpose.SEGMENT):
                self._offers.hand_out(sock, hello)
        try:
            self._await_fetched(group_id, members, watch, end, world=world)
            return made
        except BaseException:
            made.close()
            raise

    def _await_fetched(self, group_id: int, members: Sequence[int], watch: Watch | None, end: float, *, world: bool) -> None:
        awaited = set[int]()
        notice = Notice(lambda waited: self._waits_for(awaited, waited))
        while awaited := self._await_some(group_id, members, min(end - time.monotonic(), notice.left(), _LOOK), world=world):
            notice.tell()
            if watch:
                watch(awaited)
            elif time.monotonic() >= end:
                raise DistNetworkError(f"rank {self.rank}: {self._named(awaited)} did not fetch the shared memory within "
                                       f"{self.timeout:g} s: not in init() or split() (or new_group) for the same ranks as "
                                       "this one is, or stopped")

    def _await_some(self, group_id: int, members: Sequence[int], seconds: float, *, world: bool) -> set[int]:
        """Waits so long at most: who has not fetched it."""
        end = time.monotonic() + seconds
        with self._changed:
            while awaited := self._offers.awaited(group_id):
                for other in awaited if world else members:
                    if other != self.rank:
                        self._check_there(other, may_leave=other not in awaited)
                if not self._changed.wait(end - time.monotonic()):
                    return awaited
            self._offers.withdraw(group_id)
            return awaited

    def _named(self, ranks: Iterable[int]) -> str:
        return ", ".join(f"rank {other} ({self.place(other)})" for other in sorted(ranks))

    def _waits_for(self, ranks: Iterable[int], waited: float) -> str:
        return (f"rank {self.rank} of {self.size} has waited {waited:.3g} s for {self._named(ranks)} to call init(), split() or "
                "new_group() for the same ranks as it has")

    def _watching(self, members: Sequence[int], watch: Watch | None) -> Watch:
        """What a wait for a segment calls now and then: raises PeerLost for a member, and what `watch` raises."""
        def look(awaited: Iterable[int]) -> None:
            for other in members:
                if other != self.rank:
                    self._check_there(other, may_leave=True)
            if watch:
                watch(awaited)

        return look

    def _fetch_segment(self, owner: int, group_id: int, sizes: tuple[int, int], watch: Watch, end: float) -> io.FileIO:
        who = f"rank {self.rank}: rank {owner} ({self.place(owner)})"
        try:
            with self._outgoing.connect(owner, Purpose.SEGMENT, group=group_id) as sock:
                self._await_owner(sock, owner, watch, end)
                return segment.receive(sock, *sizes)
        except GroupError:
            raise
        except TimeoutError:
            raise DistNetworkError(f"{who} did not share its memory within {self.timeout:g} s: it has not called init() "
                                   "or split() (or new_group) for the same ranks as this one has, or it is stopped") from None
        except (OSError, DistNetworkError) as error:
            until = time.monotonic() + self._outgoing.patience
            with self._changed:  # who ends, or has heard of an end, is through with its sockets a moment before we know
                while (left := until - time.monotonic()) > 0:
                    self._check_there(owner)
                    watch((owner,))
                    self._changed.wait(min(left, _LOOK))
            kind = AuthFailed if isinstance(error, AuthFailed) else DistNetworkError
            raise kind(f"{who} could not share its memory: {error} (did it ask for a group of the same ranks?)") from error

    def _await_owner(self, sock: socket.socket, owner: int, watch: Watch, end: float) -> None:
        """Until it sends. Raises TimeoutError, and what `watch` does."""
        notice = Notice(lambda waited: self._waits_for([owner], waited))
        news, poll = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(news, select.POLLIN)
        with self._lock:
            self._news.add(news)
        try:
            while True:
                watch((owner,))
                ready = [found for found, _ in poll.poll(max(0.0, min(end - time.monotonic(), notice.left(), _LOOK)) * 1000)]
                if sock.fileno() in ready:
                    return
                if not ready and time.monotonic() >= end:
                    raise TimeoutError
                notice.tell()
                if ready:
                    os.eventfd_read(news)
        finally:
            with self._lock:
                self._news.discard(news)
            os.close(news)

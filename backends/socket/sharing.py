"""Shared memory of a group's ranks on one host: one rank creates the segment, the others fetch it over a socket."""

from __future__ import annotations

import io
import math
import select
import socket
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from arraycomm.core.base.errors import AuthFailed, DistNetworkError, GroupError
from arraycomm.core.base.kernel import polled
from arraycomm.core.base.notice import Notice
from arraycomm.core.bootstrap.auth import Purpose
from arraycomm.core.interface.backend import Watch

from . import segment

if TYPE_CHECKING:
    from .endpoint import Endpoint

_LOOK = 0.1  # s between checks of the awaited ranks


def share_segment(endpoint: Endpoint, group_id: int, members: Sequence[int], local_members: Sequence[int], size: int, least: int,
                  *, world: bool = False, watch: Watch | None = None) -> io.FileIO:
    """Shared memory of the members of a group (world ranks) on this rank's host; the caller closes it. `world`: the group is the
    world.

    It has `size` bytes, or `least` if a resource limit of the creating rank forbids `size`.
    The lowest local rank creates it and returns when all others have it: no rank may leave while it is needed.
    Raises ResourceError, DistNetworkError, and PeerLost when any member is lost: the other members may have learned of the loss
    before this call, and then do not make it. All ranks call it for a world, though one may have finished with it and died since.
    watch: see Communicator.split().
    """
    owner, end = min(local_members), math.inf if watch else time.monotonic() + endpoint.timeout
    if owner != endpoint.rank:
        look = _watching(endpoint, (owner,) if world else members, watch)
        return _fetch_segment(endpoint, owner, group_id, (size, least), look, end)
    made = segment.create(size, least)
    with endpoint._lock:
        endpoint._offers.offer(group_id, made, set(local_members) - {endpoint.rank})
        for sock, hello in endpoint._arrivals.take(group_id, Purpose.SEGMENT):
            endpoint._offers.hand_out(sock, hello)
    try:
        _await_fetched(endpoint, group_id, members, watch, end, world=world)
        return made
    except BaseException:
        made.close()
        raise


def _await_fetched(endpoint: Endpoint, group_id: int, members: Sequence[int], watch: Watch | None, end: float, *,
                   world: bool) -> None:
    awaited = set[int]()
    notice = Notice(lambda waited: _waits_for(endpoint, awaited, waited))
    while awaited := _await_some(endpoint, group_id, members, min(end - time.monotonic(), notice.left(), _LOOK), world=world):
        notice.tell()
        if watch:
            watch(awaited)
        elif time.monotonic() >= end:
            raise DistNetworkError(f"rank {endpoint.rank}: {named(endpoint, awaited)} did not fetch the shared memory within "
                                   f"{endpoint.timeout:g} s: not in init() or split() (or new_group) for the same ranks as "
                                   "this one is, or stopped")


def _await_some(endpoint: Endpoint, group_id: int, members: Sequence[int], seconds: float, *, world: bool) -> set[int]:
    """Waits `seconds` at most. Returns the ranks that have not fetched the segment."""
    end = time.monotonic() + seconds
    with endpoint._changed:
        while awaited := endpoint._offers.awaited(group_id):
            for other in awaited if world else members:
                if other != endpoint.rank:
                    endpoint._check_there(other, may_leave=other not in awaited)
            if not endpoint._changed.wait(end - time.monotonic()):
                return awaited
        endpoint._offers.withdraw(group_id)
        return awaited


def named(endpoint: Endpoint, ranks: Iterable[int]) -> str:
    return ", ".join(f"rank {other} ({endpoint.place(other)})" for other in sorted(ranks))


def _waits_for(endpoint: Endpoint, ranks: Iterable[int], waited: float) -> str:
    return (f"rank {endpoint.rank} of {endpoint.size} has waited {waited:.3g} s for {named(endpoint, ranks)} to call init(), "
            "split() or new_group() for the same ranks as it has")


def _watching(endpoint: Endpoint, members: Sequence[int], watch: Watch | None) -> Watch:
    """A check for periodic calls during a wait: raises PeerLost for a member, and the errors of `watch`."""
    def look(awaited: Iterable[int]) -> None:
        for other in members:
            if other != endpoint.rank:
                endpoint._check_there(other, may_leave=True)
        if watch:
            watch(awaited)

    return look


def _fetch_segment(endpoint: Endpoint, owner: int, group_id: int, sizes: tuple[int, int], watch: Watch, end: float) -> io.FileIO:
    who = f"rank {endpoint.rank}: rank {owner} ({endpoint.place(owner)})"
    try:
        with endpoint._outgoing.connect(owner, Purpose.SEGMENT, group=group_id) as sock:
            _await_owner(endpoint, sock, owner, watch, end)
            return segment.receive(sock, *sizes)
    except GroupError:
        raise
    except TimeoutError:
        raise DistNetworkError(f"{who} did not share its memory within {endpoint.timeout:g} s: it has not called init() "
                               "or split() (or new_group) for the same ranks as this one has, or it is stopped") from None
    except (OSError, DistNetworkError) as error:
        until = time.monotonic() + endpoint._outgoing.patience
        with endpoint._changed:  # a rank that leaves closes its sockets a moment before this rank is notified
            while (left := until - time.monotonic()) > 0:
                endpoint._check_there(owner)
                watch((owner,))
                endpoint._changed.wait(min(left, _LOOK))
        kind = AuthFailed if isinstance(error, AuthFailed) else DistNetworkError
        raise kind(f"{who} could not share its memory: {error} (did it ask for a group of the same ranks?)") from error


def _await_owner(endpoint: Endpoint, sock: socket.socket, owner: int, watch: Watch, end: float) -> None:
    """Waits until the owner sends. Raises TimeoutError, and the errors of `watch`."""
    notice = Notice(lambda waited: _waits_for(endpoint, [owner], waited))
    while True:
        watch((owner,))
        if polled(sock.fileno(), select.POLLIN, max(0.0, min(end - time.monotonic(), notice.left(), _LOOK)) * 1000):
            return
        if time.monotonic() >= end:
            raise TimeoutError
        notice.tell()

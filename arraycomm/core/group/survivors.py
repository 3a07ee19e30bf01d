"""Group.shrink(): the survivors agree on the membership of a new group, by opening it.

Failed ranks never return, so the ranks' lists of failures converge. Each rank opens a group of the survivors that it knows of.
The group's name contains this list, so ranks with equal lists meet. A rank with an outdated list waits for a failed rank, is
notified of that failure, and retries. A shrunk group keeps the names of the first one. So a rank that has opened
a new group and lost it again still meets ranks that have not opened it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..base.errors import Aborted, CollectiveTimeout, DistBackendError, PeerLost, counted_in
from ..base.printable import numbered
from . import arguments
from .part import Part

if TYPE_CHECKING:
    from ..interface.backend import Watch
    from .group import Group

_LOOK = 0.1  # s between checks for failed ranks during a wait


class Shrinking(Part):
    """The mixin of Group with shrink()."""

    def shrink(self, *, exclude: Sequence[int] = (), timeout: float | None = None) -> Group:
        """A new group of the remaining ranks, in order, after PeerLost or Aborted. All remaining ranks call it, and only they.

        The remaining ranks are those that have not died and have not closed this group or the world. The new group has new
        numbers for its
        ranks; its attribute `ranks` gives their numbers in the world. If no rank is lost, for example after abort(), it has all
        ranks.

        Further ranks may be lost during the call. It returns when all remaining ranks have called it, whatever each of them knew
        before.
        A rank that is lost after some have returned may be a member of their new group; the first operation of that group raises
        PeerLost
        then, and shrink() of it leads to the group of the others.

        The new group takes this one's place and its connections: closing one of them closes both.

        Args:
            exclude: ranks of this group to leave out though they live, the same on all ranks that call it.
            timeout: seconds to wait for the others; None takes this group's, which is the new group's default too.

        - Blocks: until all remaining ranks have called it; within a second of the last call or death.
        - Timeout: CollectiveTimeout with the ranks that have not called it.
        - Errors: ValueError when exclude has this rank or one that the group does not have; nothing has changed then. Aborted
          when the others
          have declared this rank lost (it was stopped, or not reachable), and when the group is closed. DistBackendError where
          the
          backend cannot continue without a rank. After these errors the group is closed on this rank, and the others continue
          without it.

        Examples:
            >>> def work(group):
            ...     if group.rank == 1:
            ...         return None                              # leaves: its group is closed
            ...     try:
            ...         group.barrier()
            ...     except arraycomm.PeerLost:
            ...         group = group.shrink()
            ...     return group.ranks
            >>> arraycomm.run(work, 3)
            [(0, 2), None, (0, 2)]
        """
        excluded = {arguments.rank("exclude", rank, self.size) for rank in exclude}
        if self.rank in excluded:
            raise ValueError(f"rank {self.rank} is in exclude: only the ranks that stay call shrink()")
        seconds = self.timeout if timeout is None else arguments.group_seconds(timeout)
        if not hasattr(self._communicator, "gone"):
            raise DistBackendError(f"group {self.name!r} cannot be shrunk: backend {self.backend!r} does not report which ranks "
                                   "were lost; make a group of the others by subgroup(), or a new one by init()")
        try:
            with counted_in(self.ranks, self.name):
                return self._shrunk(excluded, time.monotonic() + seconds, seconds)
        except BaseException as error:
            self.close(type(error).__name__)  # the peers must not wait for this rank
            raise

    def _shrunk(self, excluded: set[int], end: float, seconds: float) -> Group:
        while True:
            gone = self._gone() | excluded
            members = [rank for rank in range(self.size) if rank not in gone]

            def watch(awaited: Iterable[int], members: Sequence[int] = members) -> None:
                if lost := self._gone().intersection(members):
                    raise PeerLost(f"ranks {sorted(lost)} were lost", ranks=tuple(lost), members=self.ranks)
                if (late := tuple(map(self.ranks.index, awaited))) and time.monotonic() >= end:
                    raise CollectiveTimeout(f"rank {self.rank} of {self.size} in group {self.name!r}: shrink() waited "
                                            f"{seconds:g} s for rank {numbered(late)}: alive, but it has not called it",
                                            ranks=late, members=self.ranks)

            try:
                return self._meet(members, end, watch)
            except (PeerLost, Aborted):  # this attempt failed: retry
                if time.monotonic() >= end:
                    raise

    def _gone(self) -> set[int]:
        """The failed ranks, as known by the first group: an intermediate group may be closed on some ranks."""
        found = [self._first.ranks[rank] for rank in self._first._communicator.gone()]
        return {rank for rank, world in enumerate(self.ranks) if world in found}

    def _meet(self, members: Sequence[int], end: float, watch: Watch) -> Group:
        """Opens the group of these ranks; returns when all of them have joined."""
        world = tuple(self.ranks[rank] for rank in members)
        turn = self._asked[world] = self._asked.get(world, 0) + 1
        made: Group = self._part(members, f"{self._first.name}/survivors {numbered(world)}#{turn}", self.timeout, None, watch)
        try:
            work: Any = made.barrier(async_op=True, timeout=max(end - time.monotonic(), _LOOK))
            while not _ended(work):
                watch(())
        except BaseException as error:
            made._end(type(error).__name__)
            raise
        made._first, made._asked = self._first, self._asked
        return made


def _ended(work: Any) -> bool:
    try:
        work.wait(_LOOK)
    except CollectiveTimeout:
        raise
    except TimeoutError:
        return False
    return True

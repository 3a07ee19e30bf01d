"""barrier(), and monitored_barrier(), whose error names the missing ranks."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from arraycomm.core.base.errors import DistError, DistStoreError, PeerLost
from arraycomm.core.base.notice import Notice
from arraycomm.core.bootstrap.gathering import agreed, signed
from arraycomm.core.bootstrap.store.connections import StoreLost

from ..process_groups.process_group import ProcessGroup, seconds_of
from ..store import PrefixStore
from .entry import current, entered, operation
from .methods import untimed
from .work import Work, duration, ended

_GRACE = 0.25  # s added to the other ranks' timeout: rank 0's error has more detail than their own timeout
_WATCH = 0.25  # s between liveness checks of the peers


def barrier(group: ProcessGroup | None = None, async_op: bool = False, device_ids: Sequence[int] | None = None,
            timeout: timedelta | None = None) -> Work | None:
    """Returns when every rank of the group has called it.

    Args:
        device_ids: a list of ints; without effect for host memory.
        timeout: a timedelta; None takes the group's.

    - Blocks: until the last rank has called it. With async_op=True it returns a Work at once.
    - Timeout: CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError for a timeout that is no timedelta and for device_ids that are no list. PeerLost, CollectiveMismatch,
      Aborted.
    - Algorithm: that of `arraycomm.Group.barrier()`.

    Examples:
        On each of two ranks:

        >>> dist.barrier(timeout=timedelta(seconds=60))
    """
    if group is None and device_ids is None and timeout is None and not async_op and not current.profiler._is_profiler_enabled:
        short: Any = getattr(current.default, "_plain", None)
        if short is not None and short._plain_barrier() is not NotImplemented:
            return None
    pg = entered(group, "barrier")
    if pg is None:
        return None
    if device_ids is not None and not isinstance(device_ids, list):
        raise TypeError(f"Invalid function argument: device_ids type should be List[int], got {type(device_ids)}")
    seconds = pg.core.timeout if timeout is None else seconds_of(duration(timeout))
    return ended(pg.core.barrier(async_op=bool(async_op), timeout=seconds), bool(async_op), ())


@operation()
def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """A barrier whose error names the ranks that did not call it. Either all ranks get the error or none.

    The ranks meet in the store. A rank that comes too late gets the same error. A rank that missed one barrier meets the others
    in
    the next one if a collective of the group comes between. Otherwise its next call is the barrier that it missed, and the ranks
    meet again after that error.

    Args:
        timeout: a timedelta; None takes the group's. 0: the ranks that have not called it yet are missing.
        wait_all_ranks: True names all missing ranks, False the first one.

    - Blocks: until every rank has called it, at most `timeout`.
    - Timeout: a DistError (a RuntimeError) that names the missing ranks; the group stays usable.
    - Errors: TypeError for a timeout that is no timedelta. PeerLost when a rank has died.
    - Algorithm: keys in the store; the first rank that writes the result decides for all.

    Examples:
        On each of two ranks:

        >>> dist.monitored_barrier(timeout=timedelta(seconds=60))
    """
    limit = duration(timeout)
    seconds = group.core.timeout if limit is None else 0.0 if limit == timedelta(0) else seconds_of(limit)
    if group.size() > 1:
        _Monitored(group).wait(seconds, wait_all_ranks)


class _Monitored:
    """One rank's part in one monitored barrier. The first rank that writes the result decides for all: "passed", or the error.

    A barrier's number is the count of collectives before it, and the count of monitored barriers since the last collective:
    ranks at the same point of their program have the same number, whatever barriers they have missed before.
    """

    def __init__(self, pg: ProcessGroup) -> None:
        self._pg, self._me = pg, pg.rank()
        self._store = PrefixStore(f"monitored/{pg.core.name}", pg._meeting.store)
        calls: Any = getattr(untimed(pg.core)._communicator, "calls", int)  # 0 for a backend that does not count
        before, count = pg._monitored
        self._calls = calls()
        self._count = count + 1 if before == self._calls else 0
        pg._monitored = self._calls, self._count

    def _key(self, name: object, count: int | None = None) -> str:
        return f"{self._calls}.{self._count if count is None else count}/{name}"

    def wait(self, seconds: float, wait_all: bool) -> None:
        try:
            late = self._store.check([self._key("end")])
            self._store.set(self._key(self._me), "")
            if self._store.add(self._key("came"), 1) == self._pg.size():
                end = self._decide({})
            else:
                end = self._await_end(time.monotonic() + seconds + (_GRACE if self._me else 0), seconds, wait_all)
        except StoreLost as error:
            raise DistError(f"{_named(self._pg, self._me, [0], seconds)}: {error}") from error
        if not end:
            self._forget()
            return
        while late and self._store.check([self._key("end", self._pg._monitored[1] + 1)]):  # more barriers were missed
            self._pg._monitored = self._calls, self._pg._monitored[1] + 1
        self._raise(end)

    def _decide(self, end: dict[str, Any]) -> Any:
        text = json.dumps(end).encode()
        return json.loads(agreed(self._store, self._key("end"), self._pg._meeting.secret, self._about(), text))

    def _about(self) -> str:
        return f"monitored/{self._pg.core.name}/{self._key('end')}"

    def _await_end(self, until: float, seconds: float, wait_all: bool) -> Any:
        notice = Notice(self._notice)
        while True:
            left = until - time.monotonic()
            try:
                written = self._store._get_within(self._key("end"), timedelta(seconds=max(min(left, _WATCH), 0.001)))
                return json.loads(signed(self._pg._meeting.secret, self._about(), written))
            except StoreLost:
                raise
            except DistStoreError:
                missing, cause = self._lost()
                notice.tell()
                if left <= _WATCH and not missing:
                    missing = self._missing()
                    if not missing:
                        return self._decide({})
            if missing:
                by = self._me if 0 in missing else 0  # gloo's ranks meet at rank 0, and programs look for that in the text
                return self._decide({"by": by, "missing": missing if wait_all else missing[:1], "seconds": seconds,
                                     "cause": cause})

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._pg.size()) if not self._store.check([self._key(rank)])]

    def _notice(self, waited: float) -> str:
        missing = self._missing()
        if not missing or any(rank not in missing for rank in range(self._me)):
            return ""  # the first rank that arrived reports the error
        ranks = [self._pg.ranks[rank] for rank in missing]
        return (f"[Rank {self._pg.ranks[self._me]}]: has waited {waited:.3g} s in monitored_barrier() of group "
                f"{self._pg.group_name!r} for rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}")

    def _lost(self) -> tuple[list[int], str]:
        """The ranks that have died."""
        try:
            self._pg.core.check_peers()
        except PeerLost as error:
            if not error.ranks:
                raise
            return list(error.ranks), f"\n Original exception: \n{error}"
        return [], ""

    def _raise(self, end: dict[str, Any]) -> None:
        text = _named(self._pg, end["by"], end["missing"], end["seconds"]) + end["cause"]
        me = self._pg.ranks[self._me]
        if end["by"] == self._me:
            raise DistError(text if end["cause"] else f"{text}: Rank {me} timed out in monitoredBarrier")
        raise DistError(f"[Rank {me}]: Rank {me} successfully reached monitoredBarrier, but received errors while waiting for "
                        f"send/recv from rank {self._pg.ranks[end['by']]}: {text}")

    def _forget(self) -> None:
        """Rank 0 removes the keys of the last barrier that all ranks have passed: no rank reads them any more."""
        if self._me or not self._pg._meeting.store._lists_keys:
            return
        for name in ("came", "end", *range(self._pg.size())) if self._pg._passed else ():
            with contextlib.suppress(DistStoreError):
                self._store.delete_key(f"{self._pg._passed}/{name}")
        self._pg._passed = f"{self._calls}.{self._count}"


def _named(pg: ProcessGroup, rank: int, missing: Sequence[int], seconds: float) -> str:
    ranks = [str(pg.ranks[rank]) for rank in missing]
    who = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {', '.join(ranks)}"
    return f"[Rank {pg.ranks[rank]}]: {who} failed to pass monitoredBarrier in {round(seconds * 1000)} ms"

"""barrier(), and monitored_barrier(), which says who did not come."""

from __future__ import annotations

import array
import time
from collections.abc import Sequence
from datetime import timedelta

from arraycomm.core.errors import DistError, PeerLost
from arraycomm.core.group import Group
from arraycomm.core.typed import Any

from .entry import current, entered
from .process_group import ProcessGroup, seconds_of
from .work import Work, duration, ended

_COME, _TOLD = 2**62 - 2, 2**62 - 1  # tags of its messages: the last below those of objects
_TEXT = 4096  # bytes of what rank 0 tells the others
_GRACE = 0.25  # s that the others wait longer than rank 0, whose answer tells more than their own timeout


def barrier(group: ProcessGroup | None = None, async_op: bool = False, device_ids: Sequence[int] | None = None,
            timeout: timedelta | None = None) -> Work | None:
    """Returns when every rank of the group has called it. device_ids: accepted, and not used for host memory.

    timeout: None takes the group's. TypeError for a timeout that is no timedelta, or device_ids that are no list.
    """
    if group is None and device_ids is None and timeout is None and not async_op and not current.profiler._is_profiler_enabled:
        short: Any = getattr(current.default, "plain", None)
        if short is not None and short.plain_barrier() is not NotImplemented:
            return None
    pg = entered(group, "barrier")
    if pg is None:
        return None
    if device_ids is not None and not isinstance(device_ids, list):
        raise TypeError(f"Invalid function argument: device_ids type should be List[int], got {type(device_ids)}")
    seconds = pg.core.timeout if timeout is None else seconds_of(duration(timeout))
    return ended(pg.core.barrier(async_op=bool(async_op), timeout=seconds), bool(async_op), ())


def monitored_barrier(group: ProcessGroup | None = None, timeout: timedelta | None = None,
                      wait_all_ranks: bool = False) -> None:
    """A barrier with a timeout (None: the group's) whose error names the ranks that did not come: RuntimeError on all others.

    wait_all_ranks: rank 0 waits the whole time and names all that are missing, otherwise the first one. A rank that comes
    too late gets the same error. The group stays usable, unless a rank has died.
    """
    pg = entered(group, "monitored_barrier")
    if pg is None:
        return
    seconds = pg.core.timeout if timeout is None else seconds_of(duration(timeout))
    if pg.rank() == 0:
        _monitor(pg, seconds, wait_all_ranks)
    else:
        _report(pg, seconds)


def _monitor(pg: ProcessGroup, seconds: float, wait_all: bool) -> None:
    core, cause = pg.core, ""
    try:
        missing = _missing(core, time.monotonic() + seconds, wait_all)
    except PeerLost as error:
        if not error.ranks:
            raise
        missing, cause = list(error.ranks), f"\n Original exception: \n{error}"
    text = _named(pg, missing, seconds) + cause if missing else ""
    _tell(core, text)
    if text:
        raise DistError(text)


def _missing(core: Group, end: float, wait_all: bool) -> list[int]:
    """The ranks that have not come until then; the first one unless wait_all. Raises PeerLost for one that cannot come."""
    missing = []
    arrivals = {rank: _irecv(core, rank, _COME, 1) for rank in range(1, core.size)}
    for rank, (work, _) in arrivals.items():
        try:
            work.wait(max(0.0, end - time.monotonic()))
        except TimeoutError:
            missing.append(rank)
            if not wait_all:
                break
    return missing


def _named(pg: ProcessGroup, missing: Sequence[int], seconds: float) -> str:
    ranks = [str(pg.ranks[rank]) for rank in missing]
    who = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {', '.join(ranks)}"
    return f"[Rank {pg.ranks[pg.rank()]}]: {who} failed to pass monitoredBarrier in {round(seconds * 1000)} ms"


def _tell(core: Group, text: str) -> None:
    """Small messages, kept for those that are late. A dead rank's cannot be sent, and need not be."""
    content = array.array("B", text.encode()[:_TEXT].ljust(_TEXT, b"\0"))
    sends = []
    for rank in range(1, core.size):
        try:
            sends.append(core.isend(content, rank, _TOLD))
        except PeerLost:
            continue
    if not text:
        for send in sends:
            send.wait()


def _report(pg: ProcessGroup, seconds: float) -> None:
    core = pg.core
    try:
        core.send(array.array("B", [1]), 0, _COME)
        work, content = _irecv(core, 0, _TOLD, _TEXT)
        work.wait(seconds + _GRACE)
    except (PeerLost, TimeoutError) as error:
        culprits = error.ranks if isinstance(error, PeerLost) and error.ranks else (0,)
        raise DistError(f"{_named(pg, culprits, seconds)}: {error}") from error
    text = content.tobytes().rstrip(b"\0").decode(errors="replace")
    if text:
        me = pg.ranks[pg.rank()]
        raise DistError(f"[Rank {me}]: Rank {me} successfully reached monitoredBarrier, but received errors while waiting for "
                        f"send/recv from rank {pg.ranks[0]}: {text}")


def _irecv(core: Group, rank: int, tag: int, length: int) -> tuple[Any, array.array[int]]:
    content = array.array("B", bytes(length))
    return core.irecv(content, rank, tag, out=content), content

"""Changes of a ProcessGroup's membership: groups of separate worlds are merged, and ranks join and leave without a restart.

Groups that merge hold a rendezvous in rounds over a store; one decision ends a round for all its groups (join()). A round ends
when all ranks have joined, or when a group times out. The first group to decide writes the decision (compare_set), and the other
groups wait for it: after an incomplete round the remaining groups enter the next round at once, and the group that timed out
enters it when it retries. So groups that call at the same time meet, whatever failed before.
"""

from __future__ import annotations

import array
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.bootstrap.gathering import agreed, signed
from arraycomm.core.bootstrap.rendezvous import Rendezvous, rendezvous
from arraycomm.core.bootstrap.secret import find
from arraycomm.core.bootstrap.store import PrefixStore, Store

from ..operations.methods import untimed
from ..operations.work import Work
from .member_lists import MemberList
from .options import ReconfigureOptions

if TYPE_CHECKING:
    from .process_group import ProcessGroup

_HANDLE = "arraycomm"  # the prefix of arraycomm's handles


class Absent:
    """The placeholder of a ProcessGroup's core group before there is one. advice: the text of the RuntimeError on its use."""

    closed, advice = False, ""

    def close(self, reason: str = "") -> None:
        self.closed = True

    def abort(self, reason: str = "") -> None:
        """Does nothing: no operation can be in progress."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(self.advice)


class Nobody(Absent):
    """The placeholder for a group without members, until its reconfigure()."""

    rank, size, backend = -1, 0, "socket"
    advice = "the group was made with enable_reconfigure=True and has no members yet: call reconfigure()"

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout


class Members:
    """A base class of ProcessGroup. base: the store for the rendezvous of reconfigure()."""

    _base: Store
    _handle = ""

    def merge_remote_group(self: Any, store: Store, size: int, timeout: timedelta = timedelta(seconds=1800),
                           group_name: str | None = None, group_desc: str | None = None) -> ProcessGroup:
        """A new group of the ranks of several groups, also of other worlds. All their ranks call it with the same store.

        Ranks of one group stay together and in order; the groups follow each other as they come.

        Args:
            size: the new group's number of ranks.
            timeout: a timedelta for this call, and the default of the new group's operations.

        - Blocks: until all ranks of the new group have joined.
        - Timeout: DistStoreError on the ranks that have joined.
        - Errors: ValueError for a size that is no sum of the groups' sizes, TypeError for what is no Store.
        """
        from .process_group import seconds_of

        seconds = seconds_of(timeout)
        if not isinstance(store, Store):
            raise TypeError(f"merge_remote_group: store is a Store in which all these ranks meet, got {type(store).__name__}")
        if size < self.size():
            raise ValueError(f"merge_remote_group: size is {size}, but this group alone has {self.size()} ranks")
        number, before = self._join(store, size, seconds)
        if before + self.size() > size:
            raise ValueError(f"merge_remote_group: size is {size}, but {before} ranks of other groups and {self.size()} of "
                             "this one have joined")
        meeting = rendezvous(rank=before + self.rank(), world_size=size, store=PrefixStore(f"merge/{number} of {size}", store),
                             timeout=timeout, name="merged")
        return self._made(meeting, seconds, group_name or f"merged {meeting.job[:8]}", group_desc)  # type: ignore[no-any-return]

    def _join(self: Any, store: Store, size: int, seconds: float) -> tuple[int, int]:
        """join() on the first rank, whose result is broadcast."""
        told, failure = array.array("q", [-1, -1]), None
        if self.rank() == 0:
            try:
                told[0], told[1] = join(store, size, self.size(), seconds, find())
            except Exception as error:
                failure = error
        self.core.broadcast(told, 0, out=told, timeout=seconds + self.core.timeout)  # the first rank may wait that long
        if failure is not None:
            raise failure
        if told[1] < 0:
            raise DistStoreError("merge_remote_group: the other groups have not joined in time, or the first rank of this one "
                                 "could not use the store; it says which")
        return told[0], told[1]

    @property
    def supports_reconfigure(self: Any) -> bool:
        """Whether reconfigure() can be called: over this package's engine.

        - Blocks: never, as any attribute.
        - Errors: RuntimeError for a group of several backends.
        """
        if len(self._config._engines()) > 1:
            raise RuntimeError(f"reconfiguring is not for groups of multiple backends, as {self._config}")
        return bool(self.core.backend == "socket")

    def get_reconfigure_handle(self: Any) -> str:
        """The text that stands for this process in ReconfigureOptions.handles. It stays the same for the group's life.

        - Blocks: never; nothing is sent.
        - Errors: RuntimeError where supports_reconfigure is False.
        """
        if not self.supports_reconfigure:
            raise RuntimeError(f"group {self.group_name!r} cannot be reconfigured: that needs arraycomm's own engine, not "
                               f"{self._config}")
        if not self._handle:
            self._handle = f"{_HANDLE}:{os.urandom(16).hex()}"
        return str(self._handle)

    def reconfigure(self: Any, opts: ReconfigureOptions) -> Work:
        """Gives this group the members that opts.handles names. Only these members call it, all with the same opts.

        A list of handles gives the order of the ranks; a set is sorted. Operations with the former members end, and groups that
        were
        split off are closed. It returns a Work that has ended.

        - Blocks: until all members have joined.
        - Timeout: opts.timeout, or the group's. DistStoreError names the members that did not join; the group is as before.
        - Errors: TypeError and ValueError for wrong options, ValueError on all that wait when members have different lists,
          RuntimeError
          for a uuid that was used before.
        """
        handles = self._checked(opts)
        uuid, mine = int(opts.uuid), self.get_reconfigure_handle()
        if self._base.add(f"uuid/{uuid}/{mine}", 1) > 1:
            raise RuntimeError(f"reconfigure: uuid {uuid} is already used; take another one each time")
        timeout = opts.timeout or timedelta(seconds=self.core.timeout)
        end = time.monotonic() + timeout.total_seconds()
        members = MemberList(PrefixStore(str(uuid), self._base), uuid, handles, mine, find())
        members.meet(timeout.total_seconds())
        left = timedelta(seconds=max(end - time.monotonic(), 0.001))
        meeting = rendezvous(rank=handles.index(mine), world_size=len(handles), timeout=left, name="reconfigured",
                             store=members.store)
        self._become(meeting)
        return Work()

    def _checked(self: Any, opts: ReconfigureOptions) -> list[str]:
        if not isinstance(opts, ReconfigureOptions):
            raise TypeError(f"reconfigure takes ReconfigureOptions, got {type(opts).__name__}")
        handles = sorted(opts.handles) if isinstance(opts.handles, (set, frozenset)) else list(opts.handles)
        if not all(isinstance(handle, str) for handle in handles) or not hasattr(opts.uuid, "__index__"):
            raise TypeError(f"ReconfigureOptions: handles are str and uuid is an int, got {opts}")
        if opts.timeout is not None and not isinstance(opts.timeout, timedelta):
            raise TypeError(f"ReconfigureOptions: timeout is a datetime.timedelta or None, got {opts.timeout!r}")
        strange = [handle for handle in handles if not handle.startswith(f"{_HANDLE}:")]
        if strange or len(set(handles)) != len(handles):
            raise ValueError(f"ReconfigureOptions: each handle is one that get_reconfigure_handle() gave, and appears once; "
                             f"got {handles}")
        if self.get_reconfigure_handle() not in handles:
            raise ValueError("ReconfigureOptions: this process's handle is not among the handles: only members call "
                             "reconfigure()")
        return handles

    def _made(self: Any, meeting: Rendezvous, seconds: float, name: str, desc: str | None) -> ProcessGroup:
        from .process_group import open_world

        core = open_world(meeting, self._config, seconds, None, self.bound_device_id)
        made: ProcessGroup = self._of(core, range(meeting.size), name=name, desc=desc, backend=self.backend,
                                     config=self._config, meeting=meeting, bound_device_id=self.bound_device_id)
        return made

    def _become(self: Any, meeting: Rendezvous) -> None:
        """Replaces the members. The former core group is closed after the rendezvous of the new members, which do not need it."""
        from .process_group import open_world

        core = open_world(meeting, self._config, self.core.timeout, None, self.bound_device_id)
        former, closing = untimed(self.core), self._meeting.close
        core._end_with(closing)  # the store stays until the last members leave
        if not isinstance(former, Nobody):
            former._end_with(None)
        former.close("reconfigure()")
        self._install(core, range(meeting.size), meeting._replace(close=closing))


_WHOLE, _OVER = b"whole", b"over"


def join(store: Store, size: int, mine: int, seconds: float, secret: bytes | None) -> tuple[int, int]:
    """Called by the first rank of a group of `mine` ranks: (the round, the number of other groups' ranks before this group's).
    secret: the job's, which signs a round's decision.

    If that number and `mine` together exceed `size`, the group does not fit into the round, and the round ends.
    Raises DistStoreError if not all ranks arrive in time, AuthFailed for a decision from outside the job.
    """
    rounds, end = f"merge/rounds of {size}", time.monotonic() + seconds
    while True:
        number = store.add(rounds, 0)
        key = f"merge/{number} of {size}"
        come = store.add(f"{key}/ranks", mine)
        before = come - mine
        try:
            word = _word(store, key, before, come, size, end, secret)
        finally:  # on success and failure alike, no new group may enter this round
            store.compare_set(rounds, str(number), str(number + 1))
        if word == _WHOLE or before < size < come:
            return number, before


def _word(store: Store, key: str, before: int, come: int, size: int, end: float, secret: bytes | None) -> bytes:
    """Waits for the round's decision, or makes it."""
    about = f"the end of {key}"

    def say(word: bytes) -> bytes:
        return agreed(store, f"{key}/said", secret, about, word)

    if before >= size:  # the round was complete, or over, before this group came
        return _OVER
    if come >= size:
        return say(_WHOLE if come == size else _OVER)
    try:
        return signed(secret, about, store._get_within(f"{key}/said", timedelta(seconds=max(end - time.monotonic(), 0.001))))
    except BaseException as error:  # this group leaves the round
        word = say(_OVER)
        if not isinstance(error, DistStoreError):
            raise
        if word == _WHOLE:  # the last group arrived meanwhile and relies on this one
            return word
        come = store.add(f"{key}/ranks", 0)
        raise DistStoreError(f"merge_remote_group: {come} of {size} ranks have joined in time") from error

"""One operation for each array of a list: all are checked before the first one is begun, and one Work stands for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from arraycomm.core.base.errors import CollectiveMismatch
from arraycomm.core.base.typed import Any
from arraycomm.core.group.exchange import gather_integers
from arraycomm.core.interface.kinds import COLLECTIVES

from ..process_groups.process_group import ProcessGroup
from .work import Several, Work

_BEGINS = COLLECTIVES | {"isend", "irecv"}


class Later:
    """The core's Work of a call that is made once all have been checked."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin, self._pending = begin, None

    def begin(self) -> None:
        self._pending = self._begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pending, name)


class Recorder:
    """A core group whose operations are noted instead of begun."""

    def __init__(self, core: Any) -> None:
        self._core, self.calls = core, list[Later]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        return partial(self._note, found) if name in _BEGINS else found

    def _note(self, found: Callable[..., Any], *args: Any, **named: Any) -> Later:
        self.calls.append(Later(partial(found, *args, **named)))
        return self.calls[-1]


def begin_each(view: ProcessGroup, what: str, calls: Sequence[Callable[[ProcessGroup], Work]]) -> Work:
    """view: a handle of the group that nobody else has. what: a collective's name, of which all ranks make as many calls; ""
    for messages.

    Raises what the calls raise, and CollectiveMismatch where other ranks make fewer or more.
    """
    core: Any = view.core
    recorder: Any = Recorder(core)
    view.core, view.plain, view.rooted = recorder, None, None
    works: list[Work] = []
    try:
        for call in calls:
            works.append(call(view))
        if what:
            _agree(core, what, len(calls))
        for noted in recorder.calls:
            noted.begin()
    except BaseException:
        for work in works[sum(noted._pending is not None for noted in recorder.calls):]:
            work._settle = None  # it has not begun, and never ends
        raise
    return Work(Several(recorder.calls), list(chain.from_iterable(work._arrays for work in works)),
                lambda: [work.wait() for work in works])


def _agree(core: Any, what: str, mine: int) -> None:
    counts = [count for count, in gather_integers(core._communicator, [mine], getattr(core, "timeout", None))]
    odd = next((rank for rank, count in enumerate(counts) if count != counts[0]), None)
    if odd is not None:
        raise CollectiveMismatch(
            f"rank {core.rank} of {core.size} in group {core.name!r}: {what}: rank 0 gives a list of {counts[0]} arrays, "
            f"rank {odd} one of {counts[odd]}; all ranks must give as many", ranks=(odd,), members=core.ranks)

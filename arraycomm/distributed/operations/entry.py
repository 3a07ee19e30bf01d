"""How every collective begins: whose group it is, whether this rank takes part, and what has to go before."""

from __future__ import annotations

from arraycomm.core.base.typed import Any

from ..process_groups.process_group import ProcessGroup
from ..process_groups.world import member, state
from . import held

current: Any = state  # for plain calls, current.default.plain.plain_all_reduce(...): there may be neither the one nor the other.
# What these do not take the slow path does, which finds out what is the matter.
_LEVEL = 4  # frames from world.member() to who called the function that calls entered()


def entered(group: Any, what: str, level: int = _LEVEL) -> ProcessGroup | None:
    """The group of a call; None, after a warning, for ranks outside. What a coalescing manager holds back goes first."""
    pg = member(group, what, level)
    if pg is not None and pg.collected:
        held.run(pg, False)
    return pg

"""How every collective begins: whose group it is, whether this rank takes part, and what has to go before."""

from __future__ import annotations

from . import held
from .process_group import ProcessGroup
from .world import member, state

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

# What a plain call raises before it sends anything: the long way finds out again and explains. (Errors that come later are
# DistErrors, none of these.)
UNPLAIN = (AttributeError, TypeError, ValueError)
_LEVEL = 5  # frames from world.member() to who called a function that calls entered(), or collecting() in a helper


def collecting(group: Any, what: str, level: int = _LEVEL) -> ProcessGroup | None:
    """The group of a call that a coalescing manager may hold back; None, after a warning, for ranks outside."""
    pg = member(group, what, level)
    if group is None and state.plain is None and pg is not None and pg.collected is None and _counts_as_world(pg):
        state.plain = pg.core
    return pg


def _counts_as_world(pg: ProcessGroup) -> bool:
    """Whether ranks of the world are the core's."""
    return pg.ranks == tuple(range(len(pg.ranks)))


def entered(group: Any, what: str, level: int = _LEVEL) -> ProcessGroup | None:
    """As collecting(), for all other calls: what is held back goes first."""
    pg = collecting(group, what, level)
    if pg is not None and pg.collected:
        held.run(pg, False)
    return pg

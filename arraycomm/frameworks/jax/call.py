"""Call: what an operation is told besides its array. Part of compiled programs' keys, so it can be hashed and compared."""

from __future__ import annotations

from typing import NamedTuple

from arraycomm.core.arrays.types import OPS, ReduceOp
from arraycomm.core.group.group import Group


class Call(NamedTuple):
    """root: of a permutation the rank that is sent to; of a message the peer. source: of a permutation. -1: none. derived: of a
    derivative."""

    kind: str
    group: Group
    op: ReduceOp = OPS["sum"]
    root: int = -1
    source: int = -1
    tag: int = 0
    derived: bool = False

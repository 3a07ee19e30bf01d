"""Which processors ranks may run on: whether those of a host have one each, so that a rank that waits can spin.

Launchers bind ranks, each in its own way (srun and mpirun to a core each, by default): every rank tells where it may run. Nothing
here or in the engine changes where a thread may run: that is for the user, the launcher and the kernel to decide.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def mine() -> int:
    """A bit for each processor that this process may run on; 0 where the system does not tell."""
    try:
        return sum(1 << processor for processor in os.sched_getaffinity(0))
    except OSError:
        return 0


def oversubscribed(masks: Sequence[int]) -> bool:
    """Whether ranks that may run there cannot have a processor each.

    The rank with the smallest choice takes one first: right wherever any two masks are disjoint or one lies within the other, as
    launchers make them. Otherwise the answer may be True though there is a way.
    """
    taken = 0
    for mask in sorted(masks, key=int.bit_count):
        free = mask & ~taken
        if not free:
            return True
        taken |= free & -free
    return False

"""CPU affinity of ranks: whether each rank of a host has a CPU of its own, so that a waiting rank can spin.

Launchers bind ranks in different ways (srun and mpirun: to a core each, by default), so every rank publishes its affinity mask.
Nothing here or in the engine changes an affinity: that is for the user, the launcher and the kernel to decide. Our launchers bind
ranks that share CPUs (launch/cpus.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def mine() -> int:
    """This process's affinity mask: one bit per CPU; 0 if the system does not report it."""
    try:
        return sum(1 << processor for processor in os.sched_getaffinity(0))
    except OSError:
        return 0


def oversubscribed(masks: Sequence[int]) -> bool:
    """Whether ranks with these affinity masks are oversubscribed: not every rank can have its own CPU.

    Greedy: the rank with the smallest mask takes a CPU first. Exact if any two masks are disjoint or nested, as launchers make
    them. For other masks the answer may be True although an assignment exists.
    """
    taken = 0
    for mask in sorted(masks, key=int.bit_count):
        free = mask & ~taken
        if not free:
            return True
        taken |= free & -free
    return False

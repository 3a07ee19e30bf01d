"""Which processors ranks may run on: whether those of a host have one each, so that who waits can spin.

Launchers bind ranks, each in its own way (srun and mpirun to a core each, by default): every rank tells where it ended up.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def mine() -> int:
    """A bit for each processor that this process may run on; 0 where the system does not tell."""
    try:
        allowed = os.sched_getaffinity(0)
    except OSError:
        return 0
    mask = 0
    for processor in allowed:
        mask |= 1 << processor
    return mask


def crowded(masks: Sequence[int]) -> bool:
    """Whether ranks that may run there cannot have a processor each."""
    if len(set(masks)) == 1:  # nobody has bound them
        return len(masks) > masks[0].bit_count()
    return not _one_each(masks)


def _one_each(masks: Sequence[int]) -> bool:
    """Kuhn's matching: who finds no processor free takes that of a rank that finds another."""
    holders: dict[int, int] = {}  # processor, as a mask of its own -> mask of the rank that has it
    taken = 0

    def settle(mask: int, tried: set[int]) -> bool:
        nonlocal taken
        if free := mask & ~taken:
            first = free & -free
            taken |= first
            holders[first] = mask
            return True
        for one in (1 << cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1):
            if one not in tried:
                tried.add(one)
                if settle(holders[one], tried):
                    holders[one] = mask
                    return True
        return False

    return all(settle(mask, set()) for mask in masks)

"""Which processors ranks may run on: whether they have one each, so that who waits can spin."""

from __future__ import annotations

import os
from collections.abc import Sequence

from arraycomm.core.digest import sha256

_HOST, _CPUS = 8, 1024
BYTES = _HOST + _CPUS // 8


def here() -> bytes:
    """This process's place. Launchers bind ranks, each in its own way: every rank tells where it ended up."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
            boot = file.read()
    except OSError:
        boot = b""  # equal on all: hosts that nothing is known of are taken for one
    cpus = 0
    for cpu in os.sched_getaffinity(0):
        cpus |= 1 << cpu % _CPUS
    return sha256(boot).digest()[:_HOST] + cpus.to_bytes(_CPUS // 8, "little")


def crowded(places: Sequence[bytes], rank: int) -> bool:
    """Whether the ranks of that one's host cannot have a processor each, of those that they may run on."""
    host = places[rank][:_HOST]
    return not _one_each([int.from_bytes(place[_HOST:], "little") for place in places if place[:_HOST] == host])


def together(places: Sequence[bytes]) -> bool:
    """Whether all are on one host."""
    return len({place[:_HOST] for place in places}) == 1


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

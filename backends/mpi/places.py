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
    """Whether more ranks may come to the processors of that one than there are for them."""
    mine = places[rank]
    host, own = mine[:_HOST], int.from_bytes(mine[_HOST:], "little")
    ranks, cpus = 0, 0
    for place in places:
        theirs = int.from_bytes(place[_HOST:], "little")
        if place[:_HOST] == host and theirs & own:
            ranks += 1
            cpus |= theirs
    return ranks > cpus.bit_count()

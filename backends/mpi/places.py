"""Where ranks are: which share a host, and whether those that do have a processor each."""

from __future__ import annotations

from collections.abc import Sequence

from arraycomm.core.digest import sha256

from .. import processors

_HOST, _CPUS = 8, 1024
BYTES = _HOST + _CPUS // 8


def here() -> bytes:
    """This process's place."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
            boot = file.read()
    except OSError:
        boot = b""  # equal on all: hosts that nothing is known of are taken for one
    mask, folded = processors.mine(), 0
    while mask:  # of a machine with more processors, into the room that there is
        folded |= mask & ((1 << _CPUS) - 1)
        mask >>= _CPUS
    return sha256(boot).digest()[:_HOST] + folded.to_bytes(_CPUS // 8, "little")


def crowded(places: Sequence[bytes], rank: int) -> bool:
    """Whether the ranks of that one's host cannot have a processor each, of those that they may run on."""
    host = places[rank][:_HOST]
    return processors.crowded([int.from_bytes(place[_HOST:], "little") for place in places if place[:_HOST] == host])


def together(places: Sequence[bytes]) -> bool:
    """Whether all are on one host."""
    return len({place[:_HOST] for place in places}) == 1

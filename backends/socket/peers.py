"""What ranks tell each other about themselves through the store, and which of them share a host."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from arraycomm.core import settings
from arraycomm.core.errors import DistStoreError
from arraycomm.core.gathering import CARDS, Gathering
from arraycomm.core.store.base import Store
from arraycomm.core.store.connections import StoreLost

_CARD = "arraycomm rank 1"  # what a card starts with
# Processes share memory and a Unix socket's path when they see the same of each; the network's is here because
# "the same host" also says that loopback is the same.
_NAMESPACES = ("net", "pid", "ipc", "mnt")


# Ranks that choose differently here would wait for each other for ever, or misread each other.
_ALIKE = ("ARRAYCOMM_TRANSPORT", "ARRAYCOMM_ALGORITHM", "ARRAYCOMM_THRESHOLDS", "ARRAYCOMM_PIECE_BYTES", "ARRAYCOMM_CHECK")


class Peer(NamedTuple):
    """A rank's card."""

    host: str  # equal on ranks that share memory
    hostname: str
    pid: int
    addresses: tuple[tuple[str, int], ...]  # numeric address and port of each TCP listener
    path: str  # of its Unix listener
    connections: int  # TCP connections per pair that it would like
    alike: dict[str, str]  # what must be the same everywhere, by name

    @property
    def place(self) -> str:
        return f"host {self.hostname}, pid {self.pid}"


def host_key() -> str:
    """Equal in processes that can share memory and Unix sockets. ARRAYCOMM_HOSTID stands for the machine in it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        spaces = [str(os.stat(f"/proc/self/ns/{space}").st_ino) for space in _NAMESPACES]
    except OSError:
        return os.urandom(16).hex()  # nothing is known about this host, so nothing is shared
    return "/".join([settings.get("ARRAYCOMM_HOSTID") or boot, *spaces, str(os.geteuid())])


def this_process(addresses: Sequence[tuple[str, int]], path: str) -> Peer:
    wanted = int(settings.get_number("ARRAYCOMM_SOCKET_CONNECTIONS")) or len(addresses)
    if not 1 <= wanted <= 64:
        raise ValueError(f"ARRAYCOMM_SOCKET_CONNECTIONS must be 0 to 64, got {wanted}")
    alike = {name: settings.get(name) for name in _ALIKE}
    alike["the hash of a shape (the Python version)"] = str(hash((2, 3, 5)))  # ranks compare shapes by it
    return Peer(host_key(), socket.gethostname(), os.getpid(), tuple(addresses), path, wanted, alike)


def exchange(store: Store, rank: int, size: int, mine: Peer, timeout: float) -> list[Peer]:
    """Everybody's card, in rank order.

    Raises DistStoreError naming the ranks that did not come in time, PeerLost for one that failed, ValueError for settings
    that differ between ranks.
    """
    keys = [f"peer/{other}" for other in range(size)]
    store.set(keys[rank], _encode(mine))
    gathering = Gathering(store, rank, size)
    try:
        gathering.wait(CARDS, timeout)
    except StoreLost:
        raise
    except DistStoreError as error:
        absent = [str(other) for other in gathering.absent(CARDS)]
        raise DistStoreError(f"rank {rank} of {size}: no sign of rank {', '.join(absent) or '?'} within {timeout:g} s: "
                             f"{error}") from error
    peers = [_decode(other, card) for other, card in enumerate(store.multi_get(keys))]
    for other, peer in enumerate(peers):
        for name, value in peers[0].alike.items() if peer.alike != peers[0].alike else ():
            if peer.alike.get(name) != value:
                raise ValueError(f"{name} is {value!r} on rank 0 and {peer.alike.get(name)!r} on rank {other}; it must be the "
                                 "same on all ranks")
    return peers


def _encode(peer: Peer) -> str:
    """Strings between NULs, which neither paths nor variables can hold. json would take longer to load than to use."""
    addresses = ",".join(f"{address} {port}" for address, port in peer.addresses)
    alike = (f"{name}={value}" for name, value in peer.alike.items())
    return "\0".join((_CARD, peer.host, peer.hostname, str(peer.pid), addresses, peer.path, str(peer.connections), *alike))


def _decode(rank: int, card: bytes) -> Peer:
    try:
        kind, host, hostname, pid, addresses, path, connections, *alike = card.decode().split("\0")
        if kind != _CARD:
            raise ValueError("not a card")
        listeners = tuple((address, int(port)) for address, port in (pair.split(" ") for pair in addresses.split(",")))
        return Peer(host, hostname, int(pid), listeners, path, int(connections), dict(item.split("=", 1) for item in alike))
    except ValueError as error:
        raise DistStoreError(f"the store holds something else than the address of rank {rank} ({error}): another job "
                             "or another version of arraycomm uses the same store") from None


def number_hosts(peers: Sequence[Peer]) -> list[int]:
    """A number for each rank, equal on ranks of one host; in order of appearance."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(peer.host, len(numbers)) for peer in peers]

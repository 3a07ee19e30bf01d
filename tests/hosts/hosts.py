"""Hosts on one machine, and what can happen to their network. Needs root and iproute2."""

from __future__ import annotations

import json
from collections.abc import Iterator

from arraycomm.bench import spaces
from arraycomm.bench.spaces import Spaces, run


def missing() -> str:
    """Why there can be no such hosts here, or ""."""
    return spaces.missing(("ss", "nft", "tc"))


class Hosts(Spaces):
    """Namespaces whose network fails."""

    def __enter__(self) -> Hosts:
        super().__enter__()
        return self

    def unplug(self, host: int, link: int = 0) -> None:
        """A black hole both ways: the host's own interface stays up and sees nothing."""
        run(f"ip link set {self.port(host, link)} nomaster", self.switch)

    def lose(self, host: int, percent: int) -> None:
        """This share of the packets that the host is sent; 100: it is deaf."""
        rule = f"numgen random mod 100 < {percent} drop"
        run("nft add table inet faults", self.names[host])
        run("nft add chain inet faults in { type filter hook input priority 0 ; }", self.names[host])
        run(f"nft add rule inet faults in iifname eth0 {rule if percent < 100 else 'drop'}", self.names[host])

    def sent(self, host: int, link: int = 0) -> int:
        """Bytes that the host has sent over an interface."""
        (device,) = json.loads(run(f"ip -json -statistics link show dev eth{link}", self.names[host]))
        return int(device["stats64"]["tx"]["bytes"])

    def reset(self, host: int) -> None:
        """Ends every connection of the host with RST, as a firewall does that has forgotten them."""
        run("ss -K state established", self.names[host])


def connections(space: str) -> Iterator[tuple[str, int, str, int]]:
    """Established TCP connections in a namespace: local address and port, peer's address and port."""
    for line in run("ss -Htn state established", space).splitlines():
        local, peer = line.split()[2:4]
        yield *_split(local), *_split(peer)


def listeners(space: str) -> Iterator[tuple[str, int]]:
    for line in run("ss -Htnl", space).splitlines():
        yield _split(line.split()[3])


def _split(name: str) -> tuple[str, int]:
    address, _, port = name.rpartition(":")
    return address.strip("[]").removeprefix("::ffff:"), int(port)

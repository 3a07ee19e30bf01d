"""Hosts on one machine: network namespaces, joined by bridges. Needs root and iproute2."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator


def missing() -> str:
    """Why there can be no namespaces here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2's `ip`"
    for tool in ("ss", "nft", "tc"):
        if shutil.which(tool) is None:
            return f"faults of a network need `{tool}` (iproute2, nftables)"
    name = f"ac-probe-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"`ip netns add` does not work here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


def run(command: str, space: str = "") -> str:
    """A command, in a namespace; its output. AssertionError when it fails."""
    words = ["ip", "netns", "exec", space] * bool(space) + command.split()
    done = subprocess.run(words, capture_output=True, text=True)
    assert not done.returncode, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


class Hosts:
    """`count` namespaces, each with `links` interfaces eth0, eth1, ...; host h has the address 10.77.LINK.h+1 there.

    The bridges live in a namespace of their own, so that nothing of the machine's network is touched.
    """

    def __init__(self, count: int, links: int = 1) -> None:
        unique = secrets.token_hex(3)
        self.switch = f"ac-{unique}-switch"
        self.names = [f"ac-{unique}-{host}" for host in range(count)]
        self.links = links

    def __enter__(self) -> Hosts:
        try:
            for name in (self.switch, *self.names):
                run(f"ip netns add {name}")
                run("ip link set lo up", name)
            for link in range(self.links):
                run(f"ip link add br{link} type bridge", self.switch)
                run(f"ip link set br{link} up", self.switch)
                for host, name in enumerate(self.names):
                    self._wire(link, host, name)
            return self
        except BaseException:
            self.__exit__()
            raise

    def _wire(self, link: int, host: int, name: str) -> None:
        port = self.port(host, link)
        run(f"ip link add {port} type veth peer name eth{link} netns {name}", self.switch)
        run(f"ip link set {port} master br{link} up", self.switch)
        run(f"ip address add {self.address(host, link)}/24 dev eth{link}", name)
        run(f"ip link set eth{link} up", name)

    def port(self, host: int, link: int = 0) -> str:
        """The switch's end of a host's cable."""
        return f"p{host}-{link}"

    def address(self, host: int, link: int = 0) -> str:
        return f"10.77.{link}.{host + 1}"

    def unplug(self, host: int, link: int = 0) -> None:
        """A black hole both ways: the host's own interface stays up and sees nothing."""
        run(f"ip link set {self.port(host, link)} nomaster", self.switch)

    def lose(self, host: int, percent: int) -> None:
        """This share of the packets that the host is sent; 100: it is deaf."""
        rule = f"numgen random mod 100 < {percent} drop"
        run("nft add table inet faults", self.names[host])
        run("nft add chain inet faults in { type filter hook input priority 0 ; }", self.names[host])
        run(f"nft add rule inet faults in iifname eth0 {rule if percent < 100 else 'drop'}", self.names[host])

    def slow(self, host: int, rate: str, link: int = 0) -> None:
        """What the host sends: `rate` of tc, as "4mbit"."""
        run(f"tc qdisc replace dev eth{link} root tbf rate {rate} burst 20kb latency 50ms", self.names[host])

    def sent(self, host: int, link: int = 0) -> int:
        """Bytes that the host has sent over an interface."""
        (device,) = json.loads(run(f"ip -json -statistics link show dev eth{link}", self.names[host]))
        return int(device["stats64"]["tx"]["bytes"])

    def reset(self, host: int) -> None:
        """Ends every connection of the host with RST, as a firewall does that has forgotten them."""
        run("ss -K state established", self.names[host])

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, self.switch):
            with contextlib.suppress(AssertionError):  # not all are there when making them failed
                run(f"ip netns delete {name}")


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

"""Hosts on one machine: network namespaces joined by bridges, whose cables may be shaped. Needs root and iproute2."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess


class SpaceError(RuntimeError):
    """A command of iproute2 failed; the text says which and why."""


def missing(tools: tuple[str, ...] = ("tc",)) -> str:
    """Why there can be no namespaces here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "nsenter", *tools):
        if shutil.which(tool) is None:
            return f"network namespaces need `{tool}` (iproute2; nsenter: util-linux; nft: nftables)"
    name = f"ac-probe-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"`ip netns add` does not work here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


def inside(space: str) -> list[str]:
    """What a command begins with that is to run there. `ip netns exec` would give each its own mounts too, and who sees
    other mounts is taken for another host."""
    return ["nsenter", f"--net=/run/netns/{space}"] if space else []


def run(command: str, space: str = "") -> str:
    """A command, in a namespace; its output."""
    words = inside(space) + command.split()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SpaceError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Spaces:
    """`count` namespaces, each with `links` interfaces eth0, eth1, ...; host h has the address 10.77.LINK.h+1 there.

    The bridges live in a namespace of their own, so that nothing of the machine's network is touched.
    """

    def __init__(self, count: int, links: int = 1) -> None:
        unique = secrets.token_hex(3)
        self.switch = f"ac-{unique}-switch"
        self.names = [f"ac-{unique}-{host}" for host in range(count)]
        self.links = links

    def __enter__(self) -> Spaces:
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

    def slow(self, host: int, rate: str, link: int = 0) -> None:
        """What the host sends: `rate` of tc, as "4mbit". A short burst: who pauses must not gain by it."""
        run(f"tc qdisc replace dev eth{link} root tbf rate {rate} burst 20kb latency 50ms", self.names[host])

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, self.switch):
            with contextlib.suppress(SpaceError):  # not all are there when making them failed
                run(f"ip netns delete {name}")

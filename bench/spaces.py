"""Emulated hosts on one machine: network namespaces joined by bridges, with optional traffic shaping. Needs root and iproute2."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path("/run/netns")  # iproute2's folder of names


class SpaceError(RuntimeError):
    """A command of iproute2 failed; the text names the command and the reason."""


def missing(tools: tuple[str, ...] = ("tc",)) -> str:
    """The reason why namespaces cannot be made here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "nsenter", *tools):
        if shutil.which(tool) is None:
            return f"network namespaces need `{tool}` (iproute2; nsenter: util-linux; nft: nftables)"
    name = f"{_prefix(os.getpid())}probe"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"`ip netns add` does not work here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


def obstacle(hosts: int, numbers: Iterable[int]) -> str:
    """The reason why these numbers of ranks cannot be distributed over so many hosts here, or ""."""
    uneven = [str(ranks) for ranks in numbers if ranks % hosts]
    reason = f"--np {','.join(uneven)} cannot be divided evenly" if uneven else missing() if hosts > 1 else ""
    return reason and f"--hosts {hosts}: {reason}"


def inside(space: str) -> list[str]:
    """The command prefix that runs a command in the namespace. `ip netns exec` would also make a mount namespace per command, and
    processes in different mount namespaces count as different hosts."""
    return ["nsenter", f"--net=/run/netns/{space}"] if space else []


def run(command: str, space: str = "") -> str:
    """A command, in a namespace; its output."""
    words = inside(space) + command.split()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SpaceError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _prefix(pid: int | str) -> str:
    """The prefix of the names of a process's namespaces: its PID namespace, its id, and its start time (in ticks after boot),
    which distinguishes it from a later process with this id. "" if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        return f"ac-{os.stat('/proc/self/ns/pid').st_ino}-{pid}-{status.rpartition(')')[2].split()[19]}-"
    except (FileNotFoundError, ProcessLookupError):
        return ""


def sweep() -> list[str]:
    """Removes the namespaces that killed processes left, and ends what still runs in them. Their names."""
    ours, found = _prefix(os.getpid()).split("-")[1], []
    for name in sorted(os.listdir(_FOLDER)) if _FOLDER.is_dir() else ():
        words = name.split("-")
        if len(words) != 5 or words[:2] != ["ac", ours] or name.startswith(_prefix(words[2]) or " "):
            continue
        with contextlib.suppress(SpaceError):  # another run may sweep as well
            for pid in run(f"ip netns pids {name}").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            run(f"ip netns delete {name}")
            found.append(name)
    return found


class Spaces:
    """`count` namespaces, each with `links` interfaces eth0, eth1, ...; host h has the address 10.77.LINK.h+1 there. rate: what
    each host may send over eth0, see `slow`.

    The bridges live in a namespace of their own, so that nothing of the machine's network is touched. Those that an earlier
    process left because it was killed are removed first, with a notice on stderr.
    """

    def __init__(self, count: int, links: int = 1, rate: str | None = None) -> None:
        begin = _prefix(os.getpid()) + secrets.token_hex(3)
        self.switch = f"{begin}s"
        self.names = [f"{begin}h{host}" for host in range(count)]
        self.links, self.rate = links, rate

    def __enter__(self) -> Spaces:
        if stale := sweep():
            print(f"removed network namespaces that a killed process left: {', '.join(stale)}", file=sys.stderr)
        try:
            for name in (self.switch, *self.names):
                run(f"ip netns add {name}")
                run("ip link set lo up", name)
            for link in range(self.links):
                run(f"ip link add br{link} type bridge", self.switch)
                run(f"ip link set br{link} up", self.switch)
                for host, name in enumerate(self.names):
                    self._wire(link, host, name)
            for host in range(len(self.names)) if self.rate else ():
                self.slow(host, str(self.rate))
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
        self._keep_order(port, self.switch)
        self._keep_order(f"eth{link}", name)

    def _keep_order(self, interface: str, space: str) -> None:
        """Steers all packets of a connection to one CPU, as a network card does. By default a veth processes a packet on the
        sender's CPU: packets are reordered, and TCP treats late packets as lost."""
        file = f"/sys/class/net/{interface}/queues/rx-0/rps_cpus"
        mask = f"{(1 << min(os.cpu_count() or 1, 32)) - 1:x}"
        # `ip netns exec` and not nsenter: it mounts the /sys of that namespace.
        done = subprocess.run(["ip", "netns", "exec", space, "tee", file], input=mask, capture_output=True, text=True)
        if done.returncode:
            raise SpaceError(f"cannot keep the packets of {interface} in order: {done.stderr.strip()}")

    def port(self, host: int, link: int = 0) -> str:
        """The bridge's end of a host's veth pair."""
        return f"p{host}-{link}"

    def address(self, host: int, link: int = 0) -> str:
        return f"10.77.{link}.{host + 1}"

    def slow(self, host: int, rate: str, link: int = 0) -> None:
        """Limits the host's sending rate: `rate` of tc, as "4mbit". A short burst, so that idle time gives no credit."""
        run(f"tc qdisc replace dev eth{link} root tbf rate {rate} burst 20kb latency 50ms", self.names[host])

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, self.switch):
            with contextlib.suppress(SpaceError):  # not all are there when making them failed
                run(f"ip netns delete {name}")

"""What ranks tell each other about themselves through the store, and which of them share a host."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from arraycomm.core.base import settings
from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.base.printable import printable
from arraycomm.core.base.record import Record
from arraycomm.core.base.typed import TYPE_CHECKING
from arraycomm.core.bootstrap.gathering import CARDS, Gathering, sign, signed
from arraycomm.core.bootstrap.store.base import Store

from .. import processors

if TYPE_CHECKING:
    from arraycomm.core.interface.tuning import Tuning

_CARD = "arraycomm rank 6"  # what a card starts with
# Processes share memory and a Unix socket's path when they see the same of each; the network's is here because
# "the same host" also says that loopback is the same.
_NAMESPACES = ("net", "pid", "ipc", "mnt")

_TUNING, _TRACE = "ARRAYCOMM_TUNING", "ARRAYCOMM_TRACE"
_APART = b"\1"  # before what makes the host of a rank that shares no memory its own


class Peer(Record):
    """A rank's card."""

    host: str  # equal on ranks that share memory
    connections: int  # TCP connections per pair that it would like
    processors: int  # a bit for each that it may run on
    hostname: str
    pid: int
    addresses: tuple[tuple[str, int], ...]  # numeric address and port of each TCP listener
    path: str  # of its Unix listeners (local.listen)
    alike: dict[str, str]  # what must be the same everywhere, by name

    @property
    def place(self) -> str:
        return f"host {self.hostname}, pid {self.pid}"


def host_key() -> str:
    """Equal in processes that can share memory and Unix sockets. ARRAYCOMM_HOSTID stands for the machine in it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
            boot = file.read().strip().decode()
        spaces = [str(os.stat(f"/proc/self/ns/{space}").st_ino) for space in _NAMESPACES]
    except OSError:
        return os.urandom(16).hex()  # nothing is known about this host, so nothing is shared
    return "/".join([settings.get("ARRAYCOMM_HOSTID") or boot, *spaces, str(os.geteuid())])


def _machine(host: bytes) -> bytes:
    """Equal on ranks that share processors, which may be more than those that share memory."""
    return host.partition(_APART)[0]


def this_process(addresses: Sequence[tuple[str, int]], path: str, tuned: Tuning | None = None, *,
                 apart: bool = False) -> Peer:
    """This rank's card. apart: it cannot share memory with anybody."""
    wanted = settings.get_integer("ARRAYCOMM_SOCKET_CONNECTIONS") or min(len(addresses), settings.CONNECTIONS)
    alike = {row.name: settings.get(row.name) for row in settings.TABLE.values() if row.ranks == settings.EQUAL}
    alike[_TUNING] = str(tuned or "")  # what the file says: it may lie elsewhere on another host
    alike[_TRACE] = "set" if settings.get(_TRACE) else "not set"  # who traces begins by comparing clocks with all others
    alike["the hash of a shape (the Python version)"] = str(hash((2, 3, 5)))  # ranks compare shapes by it
    # whom nobody on its host can reach, by a socket or by memory, is as on another one
    host = host_key() + f"{_APART.decode()}{os.urandom(8).hex()}" * (apart or not path)
    return Peer(host, wanted, processors.mine(), socket.gethostname(), os.getpid(), tuple(addresses), path, alike)


class Peers:
    """Everybody's card, by rank. What is not needed of all ranks is read when it is asked for: most never is."""

    def __init__(self, cards: Sequence[bytes], mine: Peer) -> None:
        """Raises DistStoreError for what is no card, ValueError for settings that differ between ranks."""
        self._cards = cards
        self.hosts: list[bytes] = []  # equal on ranks that share memory
        self.connections = 0  # the most that anybody would like
        self._processors: list[int] = []
        start, alike = _as_bytes(_start(mine)), _as_bytes(_alike(mine))
        if all(card.startswith(start) and card.endswith(alike) for card in cards):  # one host
            self.hosts, self.connections = [_as_bytes(mine.host)] * len(cards), mine.connections
            self._processors = [mine.processors] * len(cards)
            return
        for rank, card in enumerate(cards):
            try:
                magic, host, wanted, mask, _ = card.split(b"\0", 4)
                self._processors.append(int(mask, 16))
                self.connections = max(self.connections, int(wanted))
            except ValueError:
                magic = b""
            if magic != _CARD.encode():
                raise _no_card(rank, "it starts otherwise")
            self.hosts.append(host)
        if not all(card.endswith(alike) for card in cards):
            self._compare()

    def __len__(self) -> int:
        return len(self._cards)

    def __getitem__(self, rank: int) -> Peer:
        return _decode(rank, self._cards[rank])

    def process(self, rank: int) -> int:
        """Its process id, at a tenth of what the whole card costs. Raises DistStoreError."""
        with contextlib.suppress(IndexError, ValueError):
            pid = int(self._cards[rank].split(b"\0", 6)[5])
            if 0 < pid < 1 << 31:
                return pid
        raise _no_card(rank, "it names no process")

    def _compare(self) -> None:
        first = self[0].alike
        for rank in range(len(self)):
            other = self[rank].alike
            for name in {**first, **other}:  # another version of this package may know more of them
                if other.get(name) != first.get(name):
                    raise ValueError(f"{name} is {first.get(name)!r} on rank 0 and {other.get(name)!r} on rank {rank}; it must "
                                     "be the same on all ranks")

    def hosts_of(self, members: Sequence[int]) -> list[int]:
        """A number per member; equal numbers share memory. ARRAYCOMM_TRANSPORT=tcp keeps all apart.

        Raises ValueError for ARRAYCOMM_TRANSPORT=shm when the members are on several hosts.
        """
        transport = settings.get_transport()
        if transport == "tcp":
            return list(range(len(members)))
        numbers = number_hosts([self.hosts[member] for member in members])
        if transport == "shm" and any(numbers):
            raise ValueError("ARRAYCOMM_TRANSPORT=shm, but the ranks are on several hosts (or containers): "
                             f"{', '.join(sorted({self[m].hostname for m in members}))}; use auto")
        return numbers

    def beside(self, rank: int, members: Sequence[int]) -> int:
        """How many of them are on this rank's host, even where ARRAYCOMM_TRANSPORT=tcp keeps them apart."""
        return sum(_machine(self.hosts[member]) == _machine(self.hosts[rank]) for member in members)

    def oversubscribed(self, rank: int, members: Sequence[int]) -> bool:
        """Whether those on this rank's host cannot have a processor each, of those that they may run on."""
        here = _machine(self.hosts[rank])
        return processors.oversubscribed([self._processors[member] for member in members if _machine(self.hosts[member]) == here])


def tuning() -> Tuning | None:
    if not settings.get("ARRAYCOMM_TUNING"):
        return None
    from arraycomm.core.interface import tuning  # here: most have no selection file

    return tuning.current()


def exchange(store: Store, rank: int, size: int, mine: Peer, timeout: float, secret: bytes | None, job: str) -> Peers:
    """Everybody's card. Each is signed by its rank: the store, and the rank that comes last and packs them, are not believed.

    Raises DistStoreError naming the ranks that did not come in time, PeerLost for one that failed, ValueError for settings
    that differ between ranks, AuthFailed for a card without the signature of this secret, job and rank.
    """
    gathering = Gathering(store, rank, size, secret)
    packed = gathering.wait(CARDS, timeout, content=sign(secret, _about(job, rank), encode(mine)),
                            result=lambda: _pack(store.multi_get([f"{CARDS}/{other}" for other in range(size)])))
    return Peers([signed(secret, _about(job, other), card) for other, card in enumerate(_unpack(packed, size))], mine)


def _about(job: str, rank: int) -> str:
    return f"the card of rank {rank} of job {job}"


def _pack(cards: Sequence[bytes]) -> bytes:
    """The last that comes does it for all, who then need not ask for each."""
    return struct.pack(f"<{len(cards)}I", *map(len, cards)) + b"".join(cards)


def _unpack(packed: bytes, size: int) -> list[bytes]:
    if len(packed) < 4 * size:
        raise _no_card(0, "there is no list of cards")
    ends = list(accumulate(struct.unpack_from(f"<{size}I", packed), initial=4 * size))
    return [packed[start:end] for start, end in pairwise(ends)]


def alone(addresses: Sequence[tuple[str, int]]) -> Peers:
    """The cards of a world of one."""
    mine = this_process(addresses, "")
    return Peers([encode(mine)], mine)


def _as_bytes(text: str) -> bytes:
    """The system's names are bytes, as Python has them in text where they are not UTF-8."""
    return text.encode(errors="surrogateescape")


def encode(peer: Peer) -> bytes:
    """Strings between NULs, which neither paths nor variables can hold. json would take longer to load than to use."""
    addresses = ",".join(f"{address} {port}" for address, port in peer.addresses)
    named = f"{peer.hostname}\0{peer.pid}\0{addresses}\0"
    return _as_bytes(_start(peer) + named) + os.fsencode(peer.path) + _as_bytes(_alike(peer))


def _start(peer: Peer) -> str:
    """Of a card; equal on ranks of one host that wish for as many connections and may run anywhere there."""
    return f"{_CARD}\0{peer.host}\0{peer.connections}\0{peer.processors:x}\0"


def _alike(peer: Peer) -> str:
    return "".join(f"\0{name}={value}" for name, value in peer.alike.items())


def _decode(rank: int, card: bytes) -> Peer:
    try:
        fields = card.decode(errors="surrogateescape").split("\0")
        _, host, connections, mask, hostname, pid, addresses, path, *alike = fields
        listeners = tuple((address, int(port)) for address, port in (pair.split(" ") for pair in addresses.split(",")))
        path = os.fsdecode(_as_bytes(path))
        return Peer(host, int(connections), int(mask, 16), printable(hostname), int(pid), listeners, path,
                    dict(item.split("=", 1) for item in alike))
    except ValueError as error:
        raise _no_card(rank, str(error)) from None


def _no_card(rank: int, why: str) -> DistStoreError:
    return DistStoreError(f"the store holds something else than the address of rank {rank} ({why}): another job or another "
                          "version of arraycomm uses the same store")


def number_hosts(hosts: Sequence[bytes]) -> list[int]:
    """A number for each rank, equal on ranks of one host; in order of appearance."""
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(host, len(numbers)) for host in hosts]

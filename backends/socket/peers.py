"""The records (cards) that ranks publish in the store, and which ranks share a host."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from arraycomm.core.base import kernel, settings
from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.base.printable import printable
from arraycomm.core.bootstrap.gathering import CARDS, Gathering, sign, signed
from arraycomm.core.bootstrap.store.base import Store

from .. import processors

if TYPE_CHECKING:
    from arraycomm.core.interface.tuning import Tuning

_CARD = "arraycomm rank 6"  # magic of a record
# Processes with equal namespaces share memory and a Unix socket's path. The network's is included because
# "the same host" also says that loopback is the same.
_NAMESPACES = ("net", "pid", "ipc", "mnt")

_TUNING, _TRACE = "ARRAYCOMM_TUNING", "ARRAYCOMM_TRACE"
_APART = b"\1"  # separates the machine from a unique suffix, for a rank that shares no memory


class Peer(NamedTuple):
    """A rank's record in the store."""

    host: str  # equal on ranks that share memory
    connections: int  # requested number of TCP connections per pair
    processors: int  # affinity mask, one bit per CPU
    hostname: str
    pid: int
    addresses: tuple[tuple[str, int], ...]  # numeric address and port of each TCP listener
    path: str  # of its Unix listeners (local.listen)
    alike: dict[str, str]  # settings that must be equal on all ranks, by name

    @property
    def place(self) -> str:
        return f"host {self.hostname}, pid {self.pid}"


def host_key() -> str:
    """Equal in processes that can share memory and Unix sockets. ARRAYCOMM_HOSTID stands for the machine in it."""
    try:
        boot = kernel.boot_id()
        spaces = [str(os.stat(f"/proc/self/ns/{space}").st_ino) for space in _NAMESPACES]
    except OSError:
        return os.urandom(16).hex()  # the host is unknown, so share nothing
    return "/".join([settings.get("ARRAYCOMM_HOSTID") or boot, *spaces, str(os.geteuid())])


def _machine(host: bytes) -> bytes:
    """Equal on ranks that share CPUs. They do not necessarily share memory."""
    return host.partition(_APART)[0]


def this_process(addresses: Sequence[tuple[str, int]], path: str, tuned: Tuning | None = None, *,
                 apart: bool = False) -> Peer:
    """This rank's record. apart: it cannot share memory with other ranks."""
    wanted = int(settings.get_number("ARRAYCOMM_SOCKET_CONNECTIONS")) or min(len(addresses), settings.CONNECTIONS)
    alike = {row.name: settings.get(row.name) for row in settings.TABLE.values() if row.ranks == settings.EQUAL}
    alike[_TUNING] = str(tuned or "")  # the contents: the file's path may differ between hosts
    alike[_TRACE] = "set" if settings.get(_TRACE) else "not set"  # tracing starts with a collective clock synchronisation
    alike["the hash of a shape (the Python version)"] = str(hash((2, 3, 5)))  # ranks compare shapes by it
    # a rank unreachable by Unix socket or shared memory counts as on another host
    host = host_key() + f"{_APART.decode()}{os.urandom(8).hex()}" * (apart or not path)
    return Peer(host, wanted, processors.mine(), socket.gethostname(), os.getpid(), tuple(addresses), path, alike)


class Peers:
    """The records of all ranks. Fields that are not needed of all ranks are decoded on demand; most never are."""

    def __init__(self, cards: Sequence[bytes], mine: Peer) -> None:
        """Raises DistStoreError for a malformed record, ValueError for settings that differ between ranks."""
        self._cards = cards
        self.hosts: list[bytes] = []  # equal on ranks that share memory
        self.connections = 0  # maximum over the ranks
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
        """The rank's process id, without decoding the other fields (10 times faster). Raises DistStoreError."""
        with contextlib.suppress(IndexError, ValueError):
            pid = int(self._cards[rank].split(b"\0", 6)[5])
            if 0 < pid < 1 << 31:
                return pid
        raise _no_card(rank, "it names no process")

    def _compare(self) -> None:
        first = self[0].alike
        for rank in range(len(self)):
            other = self[rank].alike
            for name in {**first, **other}:  # another version of this package may have other settings
                if other.get(name) != first.get(name):
                    raise ValueError(f"{name} is {first.get(name)!r} on rank 0 and {other.get(name)!r} on rank {rank}; it must "
                                     "be the same on all ranks")

    def hosts_of(self, members: Sequence[int]) -> list[int]:
        """A host number per member; members with equal numbers share memory. ARRAYCOMM_TRANSPORT=tcp: all differ.

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
        """The number of members on this rank's host, also with ARRAYCOMM_TRANSPORT=tcp."""
        return sum(_machine(self.hosts[member]) == _machine(self.hosts[rank]) for member in members)

    def oversubscribed(self, rank: int, members: Sequence[int]) -> bool:
        """Whether the members on this rank's host are oversubscribed: not each can have a CPU of its own."""
        here = _machine(self.hosts[rank])
        return processors.oversubscribed([self._processors[member] for member in members if _machine(self.hosts[member]) == here])


def tuning() -> Tuning | None:
    if not settings.get("ARRAYCOMM_TUNING"):
        return None
    from arraycomm.core.interface import tuning  # lazy: most programs have no selection file

    return tuning.current()


def exchange(store: Store, rank: int, size: int, mine: Peer, timeout: float, secret: bytes | None, job: str) -> Peers:
    """All-gathers the records. Each rank signs its own: the store, and the last rank, which packs them, are not trusted.

    Raises DistStoreError naming the ranks that did not come in time, PeerLost for one that failed, ValueError for settings
    that differ between ranks, AuthFailed for a record without a valid signature of this secret, job and rank.
    """
    gathering = Gathering(store, rank, size, secret)
    packed = gathering.wait(CARDS, timeout, content=sign(secret, _about(job, rank), encode(mine)),
                            result=lambda: _pack(store.multi_get([f"{CARDS}/{other}" for other in range(size)])))
    return Peers([signed(secret, _about(job, other), card) for other, card in enumerate(_unpack(packed, size))], mine)


def _about(job: str, rank: int) -> str:
    return f"the card of rank {rank} of job {job}"


def _pack(cards: Sequence[bytes]) -> bytes:
    """The last rank packs the records into one value, so that the others need one request only."""
    return struct.pack(f"<{len(cards)}I", *map(len, cards)) + b"".join(cards)


def _unpack(packed: bytes, size: int) -> list[bytes]:
    if len(packed) < 4 * size:
        raise _no_card(0, "there is no list of cards")
    ends = list(accumulate(struct.unpack_from(f"<{size}I", packed), initial=4 * size))
    return [packed[start:end] for start, end in pairwise(ends)]


def alone(addresses: Sequence[tuple[str, int]]) -> Peers:
    """The records of a world of one."""
    mine = this_process(addresses, "")
    return Peers([encode(mine)], mine)


def _as_bytes(text: str) -> bytes:
    """Encodes names of the system; bytes that are not UTF-8 are surrogate escapes in Python's text."""
    return text.encode(errors="surrogateescape")


def encode(peer: Peer) -> bytes:
    """Strings separated by NUL, which neither paths nor variables can contain. Loading json takes longer than using it."""
    addresses = ",".join(f"{address} {port}" for address, port in peer.addresses)
    named = f"{peer.hostname}\0{peer.pid}\0{addresses}\0"
    return _as_bytes(_start(peer) + named) + os.fsencode(peer.path) + _as_bytes(_alike(peer))


def _start(peer: Peer) -> str:
    """The first fields of a record; equal on ranks of one host with equal connection counts and affinity masks."""
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
    """A host number for each rank, in order of first appearance."""
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(host, len(numbers)) for host in hosts]

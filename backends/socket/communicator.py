"""SocketCommunicator: the Communicator over the engine for shared memory and TCP. Its operations are in ../communicator.py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from arraycomm._engine import ffi, lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.base import notice, settings
from arraycomm.core.base.errors import Aborted
from arraycomm.core.base.log import log
from arraycomm.core.base.printable import printable
from arraycomm.core.group.arguments import nanoseconds
from arraycomm.core.interface.backend import Watch

from ..communicator import EngineCommunicator, address
from .endpoint import Endpoint

if TYPE_CHECKING:
    from .windows import Serving


_LIBRARY = "library"  # the MPI library's collectives
_SHOWN = 8  # hosts that the log names
_ABOUT = {"shm": "shared memory", "loopback": "{0} on one host", "tcp": "{0}", "hosts": "shared memory inside hosts, {0} between"}


def wanted_algorithms() -> str:
    """Parses ARRAYCOMM_ALGORITHM; "library" alone means every operation. Raises ValueError for an unknown algorithm, with a
    list of the known ones."""
    wanted = settings.get("ARRAYCOMM_ALGORITHM")
    if not wanted:
        return ""
    from arraycomm.core.interface import tuning  # lazy, here and below: few programs select an algorithm

    known = tuning.names()
    items = []
    for item in filter(None, wanted.split(",")):
        if item == _LIBRARY:
            items += [f"{operation}={item}" for operation, of in known.items() if item in of]
            continue
        items.append(item)
        operation, _, rest = item.partition("=")
        name, colon, limit = rest.partition(":")
        if name not in known.get(operation, ()):
            choices = "; ".join(f"{k}: {', '.join(v)}" for k, v in known.items())
            raise ValueError(f"ARRAYCOMM_ALGORITHM: {item!r} names no algorithm; there are {choices}")
        if colon and not (limit.isdecimal() and int(limit) < 2**64):
            raise ValueError(f"ARRAYCOMM_ALGORITHM: {item!r}: {limit!r} is no number of bytes")
    return ",".join(items)


def _asked(algorithms: str) -> list[tuple[str, str, str]]:
    """Triples (item, operation, algorithm) of the setting."""
    return [(item, *item.partition(":")[0].partition("=")[::2]) for item in algorithms.split(",") if item]


def _transports(hosts: Sequence[int], inside: bool) -> tuple[str, str]:
    """Names of tuning.TRANSPORTS for ordinary arrays and for arrays of group.empty(). inside: all ranks are on this host."""
    different = len(set(hosts))
    links = "loopback" if inside else "tcp"
    over = "shm" if different == 1 else links if different == len(hosts) else "hosts"
    return over, "symmetric" if over == "shm" else over


class SocketCommunicator(EngineCommunicator):
    """See EngineCommunicator."""

    network = "TCP"  # transport between hosts

    def __init__(self, endpoint: Endpoint, members: Sequence[int], name: str, timeout: float, *, owns: bool,
                 watch: Watch | None = None) -> None:
        """`members`: world ranks in group order, including this one. `owns`: close the endpoint too. watch: see split()."""
        super().__init__(list(members).index(endpoint.rank), members, name, timeout,
                         lambda rank: endpoint.place(self._members[rank]))
        self._addressless = False
        self._exposed: list[Serving] = []  # keeps their memory alive until the group has stopped
        self._endpoint = endpoint
        self._owns = owns
        self._id = int.from_bytes(sha256(f"{endpoint.job}/{name}".encode(errors="surrogatepass")).digest()[:8], "little")
        self._carry(self._open(watch))
        endpoint.register(self._id, self._members, self._group, name)

    def _open(self, watch: Watch | None) -> Any:
        algorithms, hosts = wanted_algorithms(), self._endpoint.peers.hosts_of(self._members)
        if self.size > 1 and not self._endpoint.fabric and any(name == _LIBRARY for _, _, name in _asked(algorithms)):
            raise ValueError(f"ARRAYCOMM_ALGORITHM: {_LIBRARY!r} means MPI's own collectives, and group {self.name!r} is not "
                             "over MPI: begin with backend=\"mpi\" under mpirun, or name another algorithm")
        here = self._endpoint.peers.beside(self._endpoint.rank, self._members)
        self._transports = _transports(hosts, here == self.size)
        self._announce_ignored(algorithms)
        self._oversubscribed = self._endpoint.peers.oversubscribed(self._endpoint.rank, self._members)
        tuned = self._tuned()
        local = [member for member, host in zip(self._members, hosts, strict=True) if host == hosts[self.rank]]
        piece = int(settings.get_number("ARRAYCOMM_PIECE_BYTES"))
        sizes = [lib.acomm_segment_bytes(len(local), piece, symmetric) for symmetric in (True, False)]
        processes = [self._endpoint.peers.process(member) if host == hosts[self.rank] else 0
                     for member, host in zip(self._members, hosts, strict=True)]
        keep = (*(ffi.new("int32_t[]", numbers) for numbers in (self._members, hosts, processes)),
                *(ffi.new("char[]", text.encode()) for text in (algorithms, *tuned)))
        segment = None if len(local) == 1 else self._endpoint.share_segment(
            self._id, self._members, local, *sizes, world=self._owns, watch=watch)
        options = ffi.new("acomm_group_options *", {
            "id": self._id, "rank": self.rank, "size": self.size, "members": keep[0], "hosts": keep[1], "processes": keep[2],
            "local": here, "oversubscribed": self._oversubscribed,
            "segment_fd": -1 if segment is None else segment.fileno(),
            "segment_bytes": 0 if segment is None else os.fstat(segment.fileno()).st_size, "piece_bytes": piece,
            "connections": self._endpoint.connections, "fabric": self._endpoint.fabric,
            "check": settings.get_flag("ARRAYCOMM_CHECK"), "without": settings.without(),
            "timeout": nanoseconds(self.timeout), "patience": nanoseconds(notice.patience()),
            "algorithms": keep[3], "tuned": keep[4], "tuned_symmetric": keep[5]})
        out = ffi.new("acomm_group **")
        with segment if segment is not None else contextlib.nullcontext():
            code = lib.acomm_group_open(self._endpoint.node, options, out)
        if code:
            wanted = f", to map the memory that {len(local)} ranks share" if segment else ""
            raise self._translate.code(code, os.strerror(ffi.errno) + wanted)
        return out[0]

    def _tuned(self) -> list[str]:
        """Applies the selection file to this group. World rank 0 logs a notice if the file has no matching entry."""
        tuning = self._endpoint.tuning
        if not tuning:
            return ["", ""]
        lists = [tuning.engine_list(transport, self.size) for transport in self._transports]
        if self._owns and self.rank == 0 and self.size > 1 and not any(lists):
            log().warning("ARRAYCOMM_TUNING: %s has no entry for %d ranks over %s, only for %s; the engine's own table chooses "
                          "(`arraycomm-bench tune` under this job's launcher measures its network)", tuning.path, self.size,
                          self._transports[0], tuning.covered())
        return lists

    def _announce_ignored(self, algorithms: str) -> None:
        """Logs requested algorithms that cannot run in this group."""
        if not algorithms or self.size == 1:
            return
        from arraycomm.core.interface import tuning

        for item, operation, name in _asked(algorithms):
            if not any(name in tuning.names(transport, library=True)[operation] for transport in self._transports):
                log().warning("group %r: %s does not run here (it needs all ranks on one host, or several hosts of "
                              "several ranks, with shared memory); the table chooses instead", self.name, item)

    @property
    def about(self) -> str:
        hosts = list(dict.fromkeys(self._endpoint.peers[member].hostname for member in self._members))
        rest = f", and {len(hosts) - _SHOWN} more" if len(hosts) > _SHOWN else ""
        over = _ABOUT[self._transports[0]].format(self.network)
        return f"{over}, host{'s' * (len(hosts) > 1)} {', '.join(hosts[:_SHOWN])}{rest}" \
               + ", whose ranks here cannot have a processor each" * self._oversubscribed

    # ---- memory ----

    def symmetric(self, nbytes: int, *, timeout: float | None = None) -> tuple[int, int, int] | None:
        out = ffi.new("acomm_block **")
        with self.shortcut:
            code = lib.acomm_group_share(self._checked(), nbytes, nanoseconds(timeout), out)
        if code == lib.ACOMM_UNSUPPORTED:
            if ffi.errno and not self._addressless:  # no memory could be shared, because a rank lacks address space
                self._addressless = True
                log().warning("group %r: a rank has no room for the addresses of symmetric arrays (`ulimit -v`, `-f`, or `-l` "
                              "after mlockall): they are ordinary arrays, which collectives copy", self.name)
            return None
        if code == lib.ACOMM_RESOURCE:
            cause = os.strerror(ffi.errno) if ffi.errno else "another rank had no memory"
            raise self._translate.code(code, f"{nbytes} bytes of symmetric memory: {cause}")
        if code:
            raise self.error(code)
        release = ffi.addressof(lib, "acomm_block_free")
        return int(lib.acomm_block_address(out[0])), address(release), address(out[0])

    def expose(self, buffer: Buffer) -> Serving:
        self._check_process()
        from .windows import Serving  # lazy: few programs use windows

        found = Serving(self._checked(), buffer, self.error, self.shortcut)
        self._exposed.append(found)
        return found

    # ---- groups ----

    def split(self, members: Sequence[int], name: str, *, timeout: float, watch: Watch | None = None) -> SocketCommunicator:
        self._check_process()
        return type(self)(self._endpoint, [self._members[rank] for rank in members], name, timeout, owns=False, watch=watch)

    def gone(self) -> frozenset[int]:
        self._check_process()
        if self.size == 1:
            return frozenset()
        node, text = self._endpoint.node, ffi.new("char **")
        with self.shortcut:
            group = self._checked()
            if lib.acomm_node_peer(node, self._endpoint.rank, text):
                raise Aborted(f"rank {self.rank} of {self.size} in group {self.name!r}: {printable(ffi.string(text[0]))}",
                              members=self._members)
            return frozenset(rank for rank, member in enumerate(self._members) if rank != self.rank and
                             (lib.acomm_node_peer(node, member, text) or lib.acomm_group_left(group, rank)))

    def algorithm(self, operation: int, count: int, dtype: int, op: int) -> str:
        """Name of the algorithm that the engine's table selects."""
        return str(ffi.string(lib.acomm_group_algorithm(self._checked(), operation, count, dtype, op)).decode())

    def calls(self) -> int:
        """Number of collectives called by this rank: equal on ranks at the same point of their program."""
        return int(lib.acomm_group_calls(self._checked()))

    def check_peers(self) -> None:
        self._check_process()
        if self.size > 1 and not self.closed:
            self._endpoint.check_there(self._members)

    def abort(self, reason: str) -> None:
        self._check_process()
        with self.lock:
            if not self.closed:
                lib.acomm_group_abort(self._group, reason.encode(errors="backslashreplace")[:190])

    def _leaving(self) -> None:
        for exposed in self._exposed:
            exposed.closed = True
        self._endpoint.unregister(self._id)

    def _left(self, reason: str) -> None:
        for exposed in self._exposed:
            exposed.freed()
        self._exposed.clear()
        if self._owns:
            self._endpoint.close(reason)

"""MpiEndpoint: the socket backend's endpoint of a world with rendezvous by MPI, and MPI as the transport between hosts."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any, NamedTuple

from arraycomm._engine import ffi, interrupted, lib
from arraycomm.core.base.errors import DistBackendError, DistNetworkError, ResourceError
from arraycomm.core.base.kernel import boot_id
from arraycomm.core.base.printable import printable
from arraycomm.core.bootstrap.address import loopback_address, outside_address, select_addresses
from arraycomm.core.group.arguments import nanoseconds

from ..socket.endpoint import Endpoint
from ..socket.peers import Peer, Peers, encode
from . import process
from .library import Library

_SECRET = 32
_DIGEST = 32  # of SHA-256
_WORDS = 192


class MpiEndpoint(Endpoint):
    """comm: the communicator of the world's ranks; it is duplicated. Collective: all ranks construct it.

    Raises DistNetworkError if a rank is missing, DistBackendError for an MPI error, ValueError if names or settings differ
    between ranks, and the errors of Endpoint.
    """

    def __init__(self, library: Library, comm: int, *, name: str, timeout: float) -> None:
        rank, size = process.place(library, comm)
        if size == 1:
            super().__init__(0, 1, _alone, None, job=os.urandom(16).hex(), name=name, timeout=timeout, addresses=())
            return
        fabric = _Fabric(library, comm, rank, size, timeout)
        met = _meet(fabric, name, library.takes_gpus())
        self._over, self.takes_gpus = fabric, met.gpus
        super().__init__(rank, size, fabric.exchange, met.secret, job=met.job, name=name, timeout=timeout,
                         addresses=met.addresses)

    def _open(self, exchange: Any, addresses: list[str]) -> None:
        super()._open(exchange, addresses)
        if self.size > 1:
            self.fabric, self.connections = self._over.handle, 1

    def _stop(self, text: str, *, exits: bool) -> None:
        if self._any_lost():
            process.died.set()
        super()._stop(text, exits=exits)


def _alone(mine: Peer) -> Peers:
    raise AssertionError("a world of one rank has no peers")


class _Fabric:
    """A duplicate of the communicator. It is freed when it has no reference and all sends have completed."""

    def __init__(self, library: Library, comm: int, rank: int, size: int, timeout: float) -> None:
        self._place, self._timeout, self.size = f"rank {rank} of {size}", timeout, size
        out, why, pid = ffi.new("acomm_fabric **"), ffi.new("char[]", _WORDS), os.getpid()
        self._check(lib.acomm_fabric_open(library.handle, comm, nanoseconds(timeout), out, why), why)
        # in a forked child it still belongs to the parent
        self.handle = ffi.gc(out[0], lambda fabric: lib.acomm_fabric_close(fabric) if os.getpid() == pid else None)

    def gather(self, mine: bytes) -> list[bytes]:
        """All-gathers the ranks' bytes, of equal length."""
        got, why, each = ffi.new("char[]", len(mine) * self.size), ffi.new("char[]", _WORDS), len(mine)
        self._check(lib.acomm_fabric_gather(self.handle, mine, got, each, nanoseconds(self._timeout), why), why)
        packed = bytes(ffi.buffer(got))
        return [packed[at:at + each] for at in range(0, len(packed), each)]

    def exchange(self, mine: Peer) -> Peers:
        card = encode(mine)
        lengths = [int.from_bytes(length, "little") for length in self.gather(len(card).to_bytes(4, "little"))]
        cards = self.gather(card.ljust(max(lengths), b"\0"))
        return Peers([card[:length] for card, length in zip(cards, lengths, strict=True)], mine)

    def _check(self, code: int, why: Any) -> None:
        if not code:
            return
        if code == lib.ACOMM_INTERRUPTED and (error := interrupted()) is not None:
            raise error
        if code == lib.ACOMM_TIMEOUT:
            raise DistNetworkError(f"{self._place}: not all ranks called init() or from_mpi4py() within {self._timeout:g} s; "
                                   "see what the others printed")
        words = printable(ffi.string(why)) or ffi.string(lib.acomm_code_text(code)).decode()
        kind = ResourceError if code == lib.ACOMM_RESOURCE else DistBackendError
        raise kind(f"{self._place}: MPI could not bring the ranks together: {words}")


class _Met(NamedTuple):
    """The result of the rendezvous: rank 0's secret and job, the addresses on which this rank listens, and whether all ranks
    give arrays on GPUs to MPI."""

    secret: bytes
    job: str
    addresses: list[str]
    gpus: bool


def _meet(fabric: _Fabric, name: str, gpus: bool) -> _Met:
    label = sha256(name.encode(errors="surrogatepass")).digest()
    told = fabric.gather(os.urandom(_SECRET) + label + bytes([gpus]) + _machine())
    odd = next((rank for rank, other in enumerate(told) if other[_SECRET:][:_DIGEST] != told[0][_SECRET:][:_DIGEST]), 0)
    if odd:
        raise ValueError(f"rank {odd} gives the group another name than rank 0; this rank calls it {name!r}")
    secret = told[0][:_SECRET]
    one = len({other[-_DIGEST:] for other in told}) == 1
    job = sha256(b"arraycomm's job of " + secret).digest()[:16].hex()
    return _Met(secret, job, select_addresses() or [loopback_address() if one else outside_address()],
                all(other[_SECRET + _DIGEST] for other in told))


def _machine() -> bytes:
    """A digest that is equal on ranks with the same loopback interface."""
    try:
        return bytes(sha256(f"{boot_id()} {os.stat('/proc/self/ns/net').st_ino}".encode()).digest())
    except OSError:
        return os.urandom(_DIGEST)  # the machine is unknown: a unique id, so that no rank counts as local

"""MpiCommunicator: the Communicator over MPI. Its operations are in ../communicator.py."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from arraycomm._engine import Operation, ffi, lib
from arraycomm.core import settings
from arraycomm.core.arguments import nanoseconds
from arraycomm.core.backend import Watch
from arraycomm.core.buffer import Buffer
from arraycomm.core.digest import sha256
from arraycomm.core.errors import CollectiveMismatch, DistBackendError, PeerLost
from arraycomm.core.typed import Any
from arraycomm.core.types import DeviceType, DType, ReduceOp

from ..communicator import NULL, EngineCommunicator, address
from . import places, shared
from .library import Library
from .process import finding_mpiexec, groups

_NAME = 8  # bytes of a name's digest
_ON_DEVICE = (int(DeviceType.CUDA), int(DeviceType.CUDA_MANAGED))
_kept: list[object] = []  # memory of failed operations that MPI may still use: it cannot take every request back


def _digest(name: str) -> bytes:
    return bytes(sha256(name.encode(errors="surrogatepass")).digest()[:_NAME])


def options(name: str, timeout: float, *, crowded: bool = True, check: bool = True) -> Any:
    """crowded, check: until all have met."""
    return ffi.new("acomm_mpi_options *", {
        "id": int.from_bytes(_digest(name), "little"), "timeout": nanoseconds(timeout),
        "check": check, "crowded": crowded})


class MpiCommunicator(EngineCommunicator):
    """See EngineCommunicator."""

    _failure, _stop, _free = lib.acomm_mpi_failure, lib.acomm_mpi_stop, lib.acomm_mpi_close
    _probe = lib.acomm_mpi_probe

    def __init__(self, library: Library, group: Any, members: Sequence[int], name: str, timeout: float) -> None:
        """group: an acomm_group, which is freed with it. members: its, as ranks of the world."""
        super().__init__(lib.acomm_mpi_rank(group), members, name, timeout, lambda rank: "")
        self.places: list[bytes] = []  # of each rank, once they have met
        self.check = True  # whether calls are compared
        self.enter = 0  # address of cudaSetDevice(), where the library is to move arrays on devices (direct.py)
        self._library = library
        self._carry(group, lib.acomm_mpi_lend())
        groups.add(self)

    @property
    def about(self) -> str:
        return self._library.facts().version

    def _run(self, kind: int, src: int, dst: int, count: int, dtype: int, layout: int, timeout: float | None, async_op: bool,
             owners: tuple[object, ...], op: ReduceOp | None = None, root: int = -1, tag: int = 0, counts: Any = NULL,
             received: Any = NULL) -> Operation | None:
        redop, factor = (0, 1.0) if op is None else (op.code, op.factor)
        call = ffi.new("acomm_call *", {"kind": kind, "in": ffi.cast("void *", src), "out": ffi.cast("void *", dst),
                                        "count": count, "counts": counts, "receives": received, "dtype": dtype,
                                        "redop": redop, "factor": factor, "root": root, "tag": tag, "layout": layout,
                                        "timeout": nanoseconds(timeout)})
        device = self._device(owners)
        with self.lock if async_op else self.shortcut:  # see EngineCommunicator
            group = self._checked()
            if async_op:
                out = ffi.new("acomm_op **")
                code = lib.acomm_mpi_start(group, call, device, out)
                if not code:
                    return self.shortcut.operation(address(out[0]), owners)
            else:
                code = lib.acomm_mpi_run(group, call, device)
            if code and lib.acomm_mpi_stuck(group):
                _kept.append(owners)
        if code:
            raise self.error(code)
        return None

    def _device(self, owners: tuple[object, ...]) -> Any:
        for owner in owners:
            if isinstance(owner, Buffer) and owner.device_type in _ON_DEVICE:
                enter = ffi.cast("int (*)(int)", self.enter)
                return ffi.new("acomm_mpi_device *", {"enter": enter, "number": owner.device_index})
        return NULL

    def meet(self, timeout: float) -> None:
        """The first call of a group: ranks learn where all of them are, and whether they compare calls.

        Raises ValueError where ARRAYCOMM_CHECK differs, as one would wait for what another does not send, ARRAYCOMM_TRACE, whose
        ranks begin by comparing clocks, or the group's name, without which what peers tell is not for this group.
        """
        self.check = settings.get_flag("ARRAYCOMM_CHECK")
        alike = bytes([self.check, bool(settings.get("ARRAYCOMM_TRACE"))]) + _digest(self.name)
        with contextlib.closing(shared.Offer(self.rank, self.size)) as offer:
            told = self._exchange(alike + places.here() + offer.told, timeout)
            odd = next((rank for rank in range(self.size) if told[rank][:len(alike)] != told[0][:len(alike)]), 0)
            if odd:
                self.close()  # in order: slower ranks are still in this call, and are to see the same
                raise ValueError(self._odd(odd, told[0], told[odd]))
            self.places = [place[len(alike):-shared.BYTES] for place in told]
            lib.acomm_mpi_settle(self._group, places.crowded(self.places, self.rank), self.check)
            self._share([place[-shared.BYTES:] for place in told], offer, timeout)

    def _exchange(self, mine: bytes, timeout: float) -> list[bytes]:
        """Every rank's, of one length."""
        owned, all_of_them = ffi.from_buffer(mine), ffi.new("char[]", len(mine) * self.size)
        self._run(lib.ACOMM_ALL_GATHER, address(owned), address(all_of_them), len(mine), DType.UINT8, 1, timeout, False,
                  (owned, all_of_them))
        return [ffi.buffer(all_of_them)[at:at + len(mine)] for at in range(0, len(mine) * self.size, len(mine))]

    def _share(self, told: Sequence[bytes], offer: shared.Offer, timeout: float) -> None:
        """Memory of all ranks, where they are on one host and all of them can map it."""
        if self.size == 1 or not places.together(self.places):
            return
        try:
            able = min(one[0] for one in self._exchange(bytes([shared.take(self._group, told, offer)]), timeout))
        except CollectiveMismatch:  # others have gone on, and called different things: the next call tells of it
            self._told = False
            return
        if able:
            lib.acomm_mpi_share_from_now(self._group, able == 2)

    def _odd(self, rank: int, first: bytes, theirs: bytes) -> str:
        for index, (name, words) in enumerate((("ARRAYCOMM_CHECK", "01"), ("ARRAYCOMM_TRACE", ("not set", "set")))):
            if first[index] != theirs[index]:
                return (f"{name} is {words[first[index]]} on rank 0 and {words[theirs[index]]} on rank {rank}; it must be the "
                        "same on all ranks")
        return f"rank {rank} gives the group another name than rank 0; rank {self.rank} calls it {self.name!r}"

    def symmetric(self, nbytes: int, *, timeout: float | None = None) -> None:
        self.barrier(timeout=timeout)  # a collective call, here as anywhere
        return None  # the library finds its own way to the peers' memory

    def expose(self, buffer: Buffer, near: object) -> None:
        return None

    # ---- groups ----

    def gone(self) -> frozenset[int]:
        self._check_process()
        flags = ffi.new("uint8_t[]", self.size)
        code = lib.acomm_mpi_gone(self._checked(), flags)
        if code:
            raise DistBackendError(f"rank {self.rank} of {self.size} in group {self.name!r}: {self._library.facts().version} did "
                                   "not find out which ranks are left: going on without one that died takes ULFM (docs/mpi.md)")
        return frozenset(rank for rank in range(self.size) if flags[rank])

    def split(self, members: Sequence[int], name: str, *, timeout: float, watch: Watch | None = None) -> MpiCommunicator:
        out, failure = ffi.new("acomm_group **"), ffi.new("acomm_failure *")
        ranks = ffi.new("int32_t[]", list(members))
        self._check_process()
        self._checked()
        where = [self.places[member] for member in members]
        crowded = places.crowded(where, list(members).index(self.rank))
        wanted = options(name, timeout, crowded=crowded, check=self.check)
        with finding_mpiexec(self._library):
            failed = lib.acomm_mpi_part(self._group, ranks, len(members), wanted, out, failure)
        if failed:
            raise self._translate.failure(failure)
        made = MpiCommunicator(self._library, out[0], [self._members[member] for member in members], name, timeout)
        made.places, made.check = where, self.check
        try:
            if made.size > 1 and places.together(where):
                with contextlib.closing(shared.Offer(made.rank, made.size)) as offer:
                    made._share(made._exchange(offer.told, timeout), offer, timeout)
        except BaseException as error:
            made.close(type(error).__name__)
            raise
        return made

    def check_peers(self) -> None:
        self._check_process()
        if self.size == 1 or self.closed:
            return
        why = ffi.new("char[192]")
        rank = lib.acomm_mpi_missing(self._group, why)
        if rank >= 0:
            raise PeerLost(f"rank {self.rank} of {self.size} in group {self.name!r}: rank {rank} was lost: "
                           f"{ffi.string(why).decode(errors='replace')}", ranks=(rank,), members=self._members)

    def abort(self, reason: str) -> None:
        self._check_process()
        with self.lock:
            if not self.closed:
                self._told = True
                lib.acomm_mpi_abort(self._group, reason.encode(errors="backslashreplace")[:190])

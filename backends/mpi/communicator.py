"""MpiCommunicator: the Communicator over MPI. One method per operation: arguments down, code up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from arraycomm._engine import Operation, Shortcut, ffi, interrupted, lib
from arraycomm.core import settings
from arraycomm.core.arguments import nanoseconds
from arraycomm.core.buffer import Buffer
from arraycomm.core.digest import sha256
from arraycomm.core.errors import Aborted, PeerLost
from arraycomm.core.types import DeviceType, DType, ReduceOp

from ..errors import KINDS, Translator
from . import places
from .library import Library
from .process import groups

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

_NULL = ffi.NULL
_NAME = 8  # bytes of a name's digest
_ON_DEVICE = (int(DeviceType.CUDA), int(DeviceType.CUDA_MANAGED))
_kept: list[object] = []  # memory of failed operations that MPI may still use: it cannot take every request back


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _counts(counts: Sequence[int] | None) -> Any:
    return _NULL if counts is None else ffi.new("uint64_t[]", list(counts))


def options(name: str, timeout: float, *, crowded: bool = True, check: bool = True) -> Any:
    """crowded, check: until all have met."""
    return ffi.new("acomm_mpi_options *", {
        "id": int.from_bytes(sha256(name.encode()).digest()[:_NAME], "little"), "timeout": nanoseconds(timeout),
        "check": check, "crowded": crowded})


class MpiCommunicator:
    """One rank's end of a group that MPI carries. See arraycomm.core.backend for the contract."""

    def __init__(self, library: Library, group: Any, name: str, timeout: float) -> None:
        """group: an acomm_group, which is freed with it."""
        self.name = name
        self.rank: int = lib.acomm_mpi_rank(group)
        self.size: int = lib.acomm_mpi_size(group)
        self.timeout = timeout
        self.closed = self._freed = self._told = False
        self.places: list[bytes] = []  # of each rank, once they have met
        self.check = True  # whether calls are compared
        self.enter = 0  # address of cudaSetDevice(), where the library is to move arrays on devices (direct.py)
        self.lock = threading.RLock()
        self._library = library
        self._group = group
        self._translate = Translator(self.rank, self.size, name, lambda rank: "")
        self.shortcut = Shortcut(_address(lib.acomm_mpi_lend()), _address(group), self.rank, self.size, self._call_error)
        groups.add(self)

    # ---- errors ----

    def _call_error(self, code: int, address: int) -> Exception:
        """For a native call or an operation, whose own failure lies at `address`. Raises what a signal handler raised."""
        if code == lib.ACOMM_INTERRUPTED and (error := interrupted()) is not None:
            raise error
        failure = ffi.cast("acomm_failure *", address)
        if failure.code == lib.ACOMM_TRUNCATED:  # which is not the group's
            return self._translate.failure(failure)
        self._told = True
        return self._translate.failure(failure) if failure.code else self._error(code)

    def _error(self, code: int) -> Exception:
        if code == lib.ACOMM_INTERRUPTED and (error := interrupted()) is not None:
            raise error
        failure = ffi.new("acomm_failure *")
        if not self._freed and lib.acomm_mpi_failure(self._group, failure):
            self._told = True
            return self._translate.failure(failure)
        return self._translate.code(code)

    def _run(self, kind: str, *, async_op: bool, owners: tuple[object, ...], counts: Any = _NULL, receives: Any = _NULL,
             **fields: Any) -> Operation | None:
        call = ffi.new("acomm_call *", {"kind": KINDS.index(kind), "root": -1, "factor": 1.0, **fields})
        extent = ffi.new("acomm_mpi_extent *", {"counts": counts, "receives": receives, **self._device(owners)})
        with self.lock if async_op else contextlib.nullcontext():
            if self.closed:
                raise Aborted(f"group {self.name!r} is closed; make a new one with arraycomm.init() or split()")
            if async_op:
                out = ffi.new("acomm_op **")
                code = lib.acomm_mpi_start(self._group, call, extent, out)
                if not code:
                    return self.shortcut.operation(_address(out[0]), owners)
            else:
                code = lib.acomm_mpi_run(self._group, call, extent)
        if code:
            if not self._freed and lib.acomm_mpi_stuck(self._group):
                _kept.append(owners)
            raise self._error(code)
        return None

    def _device(self, owners: tuple[object, ...]) -> dict[str, Any]:
        for owner in owners:
            if isinstance(owner, Buffer) and owner.device_type in _ON_DEVICE:
                return {"enter": ffi.cast("int (*)(int)", self.enter), "device": owner.device_index}
        return {}

    # ---- collectives ----

    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, *, layout: int = 0, timeout: float | None = None,
                   async_op: bool = False) -> Operation | None:
        return self._run("all_reduce", **_in(src), out=dst.address, redop=op.code, factor=op.factor, layout=layout,
                         timeout=nanoseconds(timeout), async_op=async_op, owners=(src, dst))

    def reduce(self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, *, layout: int = 0,
               timeout: float | None = None, async_op: bool = False) -> Operation | None:
        return self._run("reduce", **_in(src), out=dst.address if dst else 0, redop=op.code, factor=op.factor, root=root,
                         layout=layout, timeout=nanoseconds(timeout), async_op=async_op, owners=(src, dst))

    def broadcast(self, src: Buffer | None, dst: Buffer, root: int, *, layout: int = 0, timeout: float | None = None,
                  async_op: bool = False) -> Operation | None:
        return self._run("broadcast", **_out(dst, src), root=root, layout=layout, timeout=nanoseconds(timeout),
                         async_op=async_op, owners=(src, dst))

    def all_gather(self, src: Buffer, dst: Buffer, counts: Sequence[int] | None = None, *, layout: int = 0,
                   timeout: float | None = None, async_op: bool = False) -> Operation | None:
        each = _counts(counts)
        return self._run("all_gather", **_in(src), out=dst.address, counts=each, layout=layout,
                         timeout=nanoseconds(timeout), async_op=async_op, owners=(src, dst, each))

    def gather(self, src: Buffer, dst: Buffer | None, root: int, *, layout: int = 0, timeout: float | None = None,
               async_op: bool = False) -> Operation | None:
        return self._run("gather", **_in(src), out=dst.address if dst else 0, root=root, layout=layout,
                         timeout=nanoseconds(timeout), async_op=async_op, owners=(src, dst))

    def scatter(self, src: Buffer | None, dst: Buffer, root: int, *, layout: int = 0, timeout: float | None = None,
                async_op: bool = False) -> Operation | None:
        return self._run("scatter", **_out(dst, src), root=root, layout=layout, timeout=nanoseconds(timeout),
                         async_op=async_op, owners=(src, dst))

    def reduce_scatter(self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Sequence[int] | None = None, *,
                       layout: int = 0, timeout: float | None = None, async_op: bool = False) -> Operation | None:
        each = _counts(counts)
        return self._run("reduce_scatter", **_out(dst, src), redop=op.code, factor=op.factor, counts=each, layout=layout,
                         timeout=nanoseconds(timeout), async_op=async_op, owners=(src, dst, each))

    def all_to_all(self, src: Buffer, dst: Buffer, send_counts: Sequence[int] | None = None,
                   recv_counts: Sequence[int] | None = None, *, layout: int = 0, timeout: float | None = None,
                   async_op: bool = False) -> Operation | None:
        sends, receives = _counts(send_counts), _counts(recv_counts)
        return self._run("all_to_all", **_in(src) | {"count": src.count // self.size}, out=dst.address, counts=sends,
                         receives=receives, layout=layout, timeout=nanoseconds(timeout), async_op=async_op,
                         owners=(src, dst, sends, receives))

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Operation | None:
        return self._run("barrier", timeout=nanoseconds(timeout), async_op=async_op, owners=())

    def meet(self, timeout: float) -> None:
        """The first call of a group: ranks learn where all of them are, and whether they compare calls.

        Raises ValueError where ARRAYCOMM_CHECK differs, as one would wait for what another does not send, or the group's name,
        without which what peers tell is not for this group.
        """
        self.check = settings.get_flag("ARRAYCOMM_CHECK")
        alike = bytes([self.check]) + sha256(self.name.encode()).digest()[:_NAME]
        mine, size = ffi.from_buffer(alike + places.here()), len(alike) + places.BYTES
        all_of_them = ffi.new("char[]", size * self.size)
        self._run("all_gather", **{"in": _address(mine)}, out=_address(all_of_them), count=size, dtype=DType.UINT8, layout=1,
                  timeout=nanoseconds(timeout), async_op=False, owners=(mine, all_of_them))
        told = [ffi.buffer(all_of_them)[at:at + size] for at in range(0, size * self.size, size)]
        odd = next((rank for rank in range(self.size) if told[rank][:len(alike)] != told[0][:len(alike)]), 0)
        if odd:
            self.close()  # in order: slower ranks are still in this call, and are to see the same
            if told[odd][0] == told[0][0]:
                raise ValueError(f"rank {odd} gives the group another name than rank 0; rank {self.rank} calls it {self.name!r}")
            raise ValueError(f"ARRAYCOMM_CHECK is {told[0][0]} on rank 0 and {told[odd][0]} on rank {odd}; it must be the same "
                             "on all ranks")
        self.places = [place[len(alike):] for place in told]
        lib.acomm_mpi_settle(self._group, places.crowded(self.places, self.rank), self.check)

    def symmetric(self, nbytes: int, *, timeout: float | None = None) -> None:
        self.barrier(timeout=timeout)  # a collective call, here as anywhere
        return None  # the library finds its own way to the peers' memory

    def expose(self, buffer: Buffer, near: object) -> None:
        return None

    # ---- point to point ----

    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Operation | None:
        return self._run("send", **_in(src), root=peer, tag=tag, timeout=nanoseconds(timeout), async_op=async_op,
                         owners=(src,))

    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Operation:
        work = self._run("recv", **_out(dst, None), root=-1 if peer is None else peer, tag=tag,
                         timeout=nanoseconds(timeout), async_op=True, owners=(dst,))
        assert work is not None  # async_op is True
        if not async_op:
            work.wait()
        return work

    def batch(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # every operation progresses by itself

    # ---- groups ----

    def split(self, members: Sequence[int], name: str, *, timeout: float) -> MpiCommunicator:
        out, failure = ffi.new("acomm_group **"), ffi.new("acomm_failure *")
        ranks = ffi.new("int32_t[]", list(members))
        if self.closed:
            raise Aborted(f"group {self.name!r} is closed; make a new one with arraycomm.init()")
        where = [self.places[member] for member in members]
        crowded = places.crowded(where, list(members).index(self.rank))
        wanted = options(name, timeout, crowded=crowded, check=self.check)
        if lib.acomm_mpi_part(self._group, ranks, len(members), wanted, out, failure):
            raise self._translate.failure(failure)
        made = MpiCommunicator(self._library, out[0], name, timeout)
        made.places, made.check = where, self.check
        return made

    def check_peers(self) -> None:
        if self.size == 1 or self.closed:
            return
        why = ffi.new("char[192]")
        rank = lib.acomm_mpi_missing(self._group, why)
        if rank >= 0:
            raise PeerLost(f"rank {self.rank} of {self.size} in group {self.name!r}: rank {rank} was lost: "
                           f"{ffi.string(why).decode(errors='replace')}", ranks=(rank,))

    def abort(self, reason: str) -> None:
        with self.lock:
            if not self.closed:
                self._told = True
                lib.acomm_mpi_abort(self._group, reason.encode()[:190])

    def close(self, reason: str = "") -> None:
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self.shortcut.close()
        code = lib.acomm_mpi_stop(self._group, f"left with {reason}".encode()[:191] if reason else _NULL)
        try:
            self._raise_untold(code, reason)
        finally:
            with self.lock:
                self.shortcut.end()
                self._freed = True
            lib.acomm_mpi_close(self._group)

    def _raise_untold(self, code: int, reason: str) -> None:
        """What came of broadcasts that this rank left before the other had come: their last word, as no call follows."""
        failure = ffi.new("acomm_failure *")
        refused = lib.acomm_mpi_failure(self._group, failure) and failure.code == lib.ACOMM_MISMATCH
        if code == lib.ACOMM_INTERRUPTED or (not self._told and not reason and (code or refused)):
            raise self._error(code or failure.code)


def _in(src: Buffer) -> dict[str, Any]:
    return {"in": src.address, "count": src.count, "dtype": src.dtype}


def _out(dst: Buffer, src: Buffer | None) -> dict[str, Any]:
    return {"in": src.address if src else 0, "out": dst.address, "count": dst.count, "dtype": dst.dtype}

"""Symmetric memory on a GPU: from ncclMemAlloc, registered with a communicator, so that NCCL accesses it in place.

Opt-in: NCCL assumes without a check that the arrays of a collective have the same offset on all ranks, and otherwise
gives wrong results. A window if this NCCL has them (2.27), else a registered buffer.

Dropping the array wakes a thread, which waits for the device, deregisters and frees the memory. The dropping thread must not
do this itself: it may hold NCCL's or Python's locks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arraycomm.core.base import settings, threads
from arraycomm.core.base.errors import DistBackendError, DistError, ResourceError
from arraycomm.core.base.log import log
from arraycomm.core.group.exchange import gather_integers

from .declarations import CONSTANTS

if TYPE_CHECKING:
    from .communicator import NcclCommunicator

VARIABLE = "ARRAYCOMM_NCCL_SYMMETRIC"
_STEP = CONSTANTS["NCCL_WIN_REQUIRED_ALIGNMENT"][0]
_SYMMETRIC = CONSTANTS["NCCL_WIN_COLL_SYMMETRIC"][0]


@functools.cache
def _libc() -> tuple[Any, Any]:
    """libc's semaphores: C code can post them without Python, also after the interpreter has been finalised."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef("int sem_init(void *s, int shared, unsigned value); int sem_post(void *s); int sem_wait(void *s);")
    return ffi, ffi.dlopen(None)


class Block:
    """One rank's memory. It lives as long as its array, which may be longer than the communicator."""

    def __init__(self, owner: NcclCommunicator, pointer: int) -> None:
        self.pointer, self.registration = pointer, 0  # 0: not registered, or NCCL does not use registration here
        self._owner: NcclCommunicator | None = owner
        self._nccl, self._cuda, self._device = owner.nccl, owner.cuda, owner.device
        ffi, libc = _libc()
        self._dropped = ffi.new("char[64]")  # a sem_t
        libc.sem_init(self._dropped, 0, 0)
        self.release = int(ffi.cast("uintptr_t", ffi.addressof(libc, "sem_post")))
        self.context = int(ffi.cast("uintptr_t", self._dropped))

    def register(self, nbytes: int, timeout: float) -> None:
        """Registers the memory. Collective. Raises NCCL's error."""
        assert self._owner is not None
        self.registration = self._owner.handle.register(self.pointer, nbytes, timeout, _SYMMETRIC)
        self._owner.blocks.append(self)
        threads.start(threading.Thread(target=self._end, name="arraycomm nccl memory", daemon=True))

    def deregister(self) -> None:
        """Called at the end of the communicator or of the array, with the communicator's lock held."""
        owner, self._owner, registration, self.registration = self._owner, None, self.registration, 0
        if owner is not None and registration and owner.handle.comm:
            owner.handle.deregister(registration)

    def _end(self) -> None:
        while _libc()[1].sem_wait(self._dropped):
            pass  # interrupted by a signal (EINTR)
        try:
            self._cuda.serve(self._device)
            self._cuda.idle(self._device)
            self._forget()
            self.free()
        except DistError as error:  # for example, the device has failed
            log().info("symmetric memory on cuda:%d is not freed: %s", self._device, error)

    def _forget(self) -> None:
        owner = self._owner
        if owner is not None:
            with owner.lock:
                if self in owner.blocks:
                    owner.blocks.remove(self)
                self.deregister()

    def free(self) -> None:
        self._nccl.ncclMemFree(self.pointer)


def allocate(owner: NcclCommunicator, nbytes: int, timeout: float | None) -> Block | None:
    """As Communicator.symmetric(); None for 0 bytes, or if not all ranks request it. The size is equal on all ranks, as NCCL
    requires."""
    seconds = owner.timeout if timeout is None else timeout
    wanted = settings.get_flag(VARIABLE)
    cards = gather_integers(owner.host, [nbytes, wanted], timeout)
    size = -(-max(length for length, _ in cards) // _STEP) * _STEP
    if not size or not all(asks for _, asks in cards):
        if wanted and size:
            other = next(rank for rank, (_, asks) in enumerate(cards) if not asks)
            log().warning("group %r: the memory of empty() is not registered with NCCL: rank %d has no %s=1", owner.name, other,
                          VARIABLE)
        return None
    with owner.lock, owner.cuda.on(owner.device):
        owner.check_ready()
        out = owner.nccl.ffi.new("uintptr_t *")
        code = int(owner.nccl.ncclMemAlloc(out, size))
        block = Block(owner, int(out[0]))
        codes = [told for told, in gather_integers(owner.host, [code], timeout)]
        if any(codes):
            if not code:
                block.free()
            raise _no_memory(owner, size, codes)
        try:
            block.register(size, seconds)
        except (DistBackendError, ResourceError) as error:
            raise owner.broken(error) from None
    return block


def _no_memory(owner: NcclCommunicator, size: int, codes: Sequence[int]) -> ResourceError:
    rank = next(rank for rank, code in enumerate(codes) if code)
    return ResourceError(f"group {owner.name!r}: NCCL could not allocate {size} bytes on the GPU of rank {rank}: "
                         f"{owner.nccl.error_text(codes[rank])}")

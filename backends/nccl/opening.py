"""Makes communicators: of the world, and of a subset of a communicator's ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from arraycomm.core.arrays.dlpack import allocate
from arraycomm.core.arrays.types import DType
from arraycomm.core.base.errors import DistBackendError, DistError
from arraycomm.core.bootstrap.rendezvous import Rendezvous
from arraycomm.core.gpu.runtime import Runtime, runtime
from arraycomm.core.interface import registry
from arraycomm.core.interface.backend import Communicator
from arraycomm.core.interface.kinds import KINDS

from . import config
from .canary import Canary
from .communicator import NcclCommunicator, refuse_in_batch
from .handle import Handle
from .library import Library, library

HOST = "socket"  # the backend for host arrays


def open_world(meeting: Rendezvous, name: str, timeout: float, options: Mapping[str, Any], *, priority: bool,
               device: int | None) -> NcclCommunicator:
    """device: None: the calling thread's current device, or one chosen by the local rank."""
    refuse_in_batch(name)
    nccl, cuda = library(), runtime()
    config.check(nccl, options)
    host = registry.get(HOST).open(meeting, name=name, timeout=timeout)
    try:
        place = meeting.rank if meeting.local_rank is None else meeting.local_rank
        return connect(nccl, cuda, host, _device(cuda, place) if device is None else device, timeout, options, priority)
    except BaseException as error:
        host.close(type(error).__name__)
        raise


def _device(cuda: Runtime, place: int) -> int:
    return cuda.device() or place % cuda.device_count()  # a device other than 0 is the program's choice


def connect(nccl: Library, cuda: Runtime, host: Communicator, device: int, timeout: float, options: Mapping[str, Any],
            priority: bool) -> NcclCommunicator:
    """Collective over the ranks of `host`."""
    who = f"rank {host.rank} of {host.size} in group {host.name!r}"
    handle = Handle(nccl, who, Canary(host).check, lambda: cuda.on(device))
    end = time.monotonic() + timeout
    try:
        with cuda.on(device):
            handle.init(host.size, host.rank, _unique_id(nccl, host, timeout), options, end - time.monotonic())
            made = NcclCommunicator(handle, cuda, host, device, timeout, options, priority=priority)
        handle.check = made.check_failure
        return made
    except BaseException:
        handle.abort()
        raise


def _unique_id(nccl: Library, host: Communicator, timeout: float) -> bytes:
    """Rank 0's ncclUniqueId, with its error code in front: after an error on rank 0 the peers fail too and do not wait."""
    room = allocate((1 + nccl.ffi.sizeof("ncclUniqueId"),), DType.UINT8)
    memory = memoryview(room)
    error: DistError | None = None
    if host.rank == 0:
        made = nccl.ffi.new("ncclUniqueId *")
        code = nccl.ncclGetUniqueId(made)
        memory[:] = bytes([1 if code else 0]) + bytes(nccl.ffi.buffer(made))
        error = DistBackendError(f"ncclGetUniqueId failed: {nccl.error_text(code)}") if code else None
    host.collective(KINDS["broadcast"], room if host.rank == 0 else None, room, root=0, timeout=timeout)
    if error is not None:
        raise error
    if memory[0]:
        raise DistBackendError(f"group {host.name!r}: rank 0 could not make NCCL's unique id; see what it printed")
    return bytes(memory[1:])

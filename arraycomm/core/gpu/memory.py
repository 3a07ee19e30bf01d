"""Memory on a device: for results of libraries whose arrays cannot be written (JAX), or that nobody here knows, and between
arrays.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from ..arrays.buffer import Buffer
from ..arrays.codec import as_bytes
from ..arrays.dlpack import adopt, give_back
from ..arrays.types import DeviceType, DType
from ..base.errors import DistError, ResourceError
from ..interface.backend import Mover
from .runtime import ON_DEVICE, TO_DEVICE, TO_HOST, Runtime, runtime

_LEGACY = 1  # the default stream, as DLPack numbers it


def refuse_capture(buffer: Buffer) -> None:
    """DeviceError if the stream is being captured into a CUDA graph. Checked first: an allocation may end the capture. Other
    errors are left to the operation, which notifies the peers."""
    with suppress(DistError), runtime().on(buffer.device_index):
        runtime().refuse_capture([buffer.stream])


def allocate_on(like: Buffer, shape: tuple[int, ...], stream: int = _LEGACY) -> Buffer:
    """Uninitialised memory on the device of `like`, of its dtype, ready for dlpack.wrap(). stream: the Buffer's.

    Not stream-ordered: libraries drop their arrays from any thread, when work on them may be pending. cudaFree waits for the
    device, which is safe then; a thread does this. (cudaFreeAsync does not wait, and the streams that use the memory are
    unknown.)
    """
    cuda, nbytes = runtime(), math.prod(shape) * DType(like.dtype).itemsize
    pointer = _malloc(cuda, nbytes, like.device_index) if nbytes else 0
    return adopt(shape, like.dtype, pointer, cuda.address("cudaFree"), pointer, int(DeviceType.CUDA), like.device_index, stream,
                 cuda.address("cudaSetDevice"), cuda.address("cudaThreadExchangeStreamCaptureMode"))


def symmetric_on(mover: Mover, like: Buffer, shape: tuple[int, ...], dtype: int, timeout: float | None) -> Buffer:
    """As allocate_on(), of another dtype: symmetric memory if the device's mover can use it, else ordinary memory."""
    refuse_capture(like)
    template = Buffer(0, 0, dtype, int(DeviceType.CUDA), like.device_index, False, (0,), None)
    give: Any = getattr(mover, "symmetric_on", None)  # NCCL's
    found = give(math.prod(shape) * DType(dtype).itemsize, like.device_index, timeout=timeout) if give else None
    if found is None:
        return allocate_on(template, shape)
    address, release, context = found
    return adopt(shape, dtype, address, release, context, int(DeviceType.CUDA), like.device_index, _LEGACY)


def _malloc(cuda: Runtime, nbytes: int, device: int) -> int:
    try:
        return cuda.malloc(nbytes, device)
    except ResourceError:
        give_back()
    return cuda.malloc(nbytes, device)


def copy_on(source: Buffer, to: Buffer) -> None:
    """Enqueues a copy on the stream of `to`, ordered after the source's stream. One of them may be host memory: such a copy has
    completed on return."""
    if not source.nbytes:
        return
    if DeviceType.CPU in (source.device_type, to.device_type):
        _copy_across(source, to)
        return
    cuda = runtime()
    with cuda.on(to.device_index):  # a default stream is the current device's
        if source.stream != to.stream:
            cuda.order(after=source.stream, stream=to.stream, device=to.device_index)
        cuda.copy(to.address, source.address, source.nbytes, ON_DEVICE, to.stream)


def _copy_across(source: Buffer, to: Buffer) -> None:
    """Copies through temporary pinned memory, for rare copies. Operations are staged (staged.py)."""
    cuda, down, nbytes = runtime(), to.device_type == DeviceType.CPU, source.nbytes
    there, here = (source, to) if down else (to, source)
    with cuda.on(there.device_index):
        pinned = cuda.host_alloc(nbytes)
        try:
            if not down:
                cuda.ffi.memmove(cuda.ffi.cast("char *", pinned), memoryview(as_bytes(here)), nbytes)
            cuda.copy(*((pinned, there.address) if down else (there.address, pinned)), nbytes, TO_HOST if down else TO_DEVICE,
                      there.stream)
            cuda.synchronize(there.stream, there.device_index)
            if down:
                memoryview(as_bytes(here))[:] = cuda.ffi.buffer(cuda.ffi.cast("char *", pinned), nbytes)
        finally:
            cuda.free_host(pinned)

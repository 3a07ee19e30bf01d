"""Memory on a device: for results of libraries whose arrays cannot be written (JAX), or that nobody here knows, and between
arrays.
"""

from __future__ import annotations

from ..buffer import Buffer
from ..dlpack import adopt, give_back
from ..errors import ResourceError
from ..types import DeviceType, DType
from .runtime import ON_DEVICE, Runtime, runtime

_LEGACY = 1  # the default stream, as DLPack numbers it


def allocate_on(like: Buffer, shape: tuple[int, ...], stream: int = _LEGACY) -> Buffer:
    """Uninitialised memory on the device of `like`, of its dtype, ready for dlpack.wrap(). stream: the Buffer's.

    Not stream-ordered: libraries drop their arrays from any thread, when work on them may be under way, and cudaFree, which
    waits for the device, is right then. A thread does that wait.
    """
    cuda, count = runtime(), 1
    for length in shape:
        count *= length
    nbytes = count * DType(like.dtype).itemsize
    pointer = _malloc(cuda, nbytes, like.device_index) if nbytes else 0
    release = int(cuda.ffi.cast("uintptr_t", cuda.ffi.addressof(cuda.lib, "cudaFree")))
    return adopt(shape, like.dtype, pointer, release, pointer, int(DeviceType.CUDA), like.device_index, stream, cuda.enter)


def _malloc(cuda: Runtime, nbytes: int, device: int) -> int:
    try:
        return cuda.malloc(nbytes, device)
    except ResourceError:
        give_back()
    return cuda.malloc(nbytes, device)


def copy_on(source: Buffer, to: Buffer) -> None:
    """Enqueues a copy of as many bytes, on the stream of `to`, after what is under way on the other's."""
    if source.nbytes:
        cuda = runtime()
        with cuda.on(to.device_index):  # a default stream is the current device's
            if source.stream != to.stream:
                cuda.order(after=source.stream, stream=to.stream, device=to.device_index)
            cuda.copy(to.address, source.address, source.nbytes, ON_DEVICE, to.stream)

"""Results on a device for libraries whose arrays cannot be written (JAX), and for those that nobody here knows."""

from __future__ import annotations

from ..buffer import Buffer
from ..dlpack import adopt, give_back
from ..errors import ResourceError
from ..types import DeviceType, DType
from .runtime import Runtime, runtime

_LEGACY = 1  # the default stream, as DLPack numbers it


def allocate_on(like: Buffer, shape: tuple[int, ...]) -> Buffer:
    """Uninitialised memory on the device of `like`, of its dtype, ready for dlpack.wrap().

    Not stream-ordered: libraries drop their arrays from any thread, when work on them may be under way, and cudaFree, which
    waits for the device, is right then. A thread does that wait.
    """
    cuda, count = runtime(), 1
    for length in shape:
        count *= length
    nbytes = count * DType(like.dtype).itemsize
    pointer = _malloc(cuda, nbytes, like.device_index) if nbytes else 0
    release, enter = (int(cuda.ffi.cast("uintptr_t", cuda.ffi.addressof(cuda.lib, name)))
                      for name in ("cudaFree", "cudaSetDevice"))
    return adopt(shape, like.dtype, pointer, release, pointer, int(DeviceType.CUDA), like.device_index, _LEGACY, enter)


def _malloc(cuda: Runtime, nbytes: int, device: int) -> int:
    try:
        return cuda.malloc(nbytes, device)
    except ResourceError:
        give_back()
    return cuda.malloc(nbytes, device)

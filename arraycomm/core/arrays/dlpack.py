"""Any array to a Buffer, and a result back to an array of the same library. Compiled; see native/reader/resolve.c and types.c.

`resolve(array) -> Buffer`
    for reading. Takes NumPy, torch, JAX, CuPy and whatever has `__dlpack__` or the buffer protocol. A strided array is
    packed into a copy, whose Buffer is read-only; on a device its own library makes it. Waits until a JAX value on the host
    is ready. On a CUDA device nothing waits: the contents are in order on the Buffer's `stream`.
`resolve_out(array) -> Buffer`
    for writing. Refuses read-only and immutable memory (JAX always) and strided arrays.
`writable_memory(array) -> Buffer`
    the same, where the capsule has no version and so no flag for read-only memory, on the caller's word.
`pack(array) -> Buffer`
    a packed copy in writable memory of its own, ready for `wrap`.
`allocate(shape, dtype) -> Buffer`
    64-byte aligned host memory (uninitialised) for a result. `dtype` is DType's number.
`adopt(shape, dtype, address, release, context[, device_type, device_index, stream[, enter, apart]]) -> Buffer`
    the same over memory that exists already; `release(context)`, a C function given by its address, gives it back from
    any thread when nothing refers to it any more, or at once where adopt raises. With `enter` and `apart` (cudaSetDevice,
    cudaThreadExchangeStreamCaptureMode) that is done some time later, and not where adopt raises, by a thread that calls them
    before: for memory whose freeing waits for the device.
`give_back()`
    returns when all such memory that nothing refers to has been given back.
`wrap(buffer, template) -> array`
    an array over that memory, without a copy, of the library that `template` belongs to; a memoryview where that
    library has no arrays. Call it when the result has been written: JAX arrays are immutable and may be read at once.
    On a CUDA device it is enough that what writes it is enqueued on the Buffer's stream: the library's own is made to wait.
`overlaps(a, b) -> bool`
    whether two Buffers share a byte.

Raises TypeError for what is not an array, has a dtype that the engine does not know (naming those it knows) or cannot
be read; ValueError for an output that cannot be written; MemoryError.
Sources: DLPack 1.3 (https://dmlc.github.io/dlpack/latest/), PEP 3118.
"""

from arraycomm._engine import adopt, allocate, give_back, overlaps, pack, resolve, resolve_out, wrap
from arraycomm._engine import writable as writable_memory

__all__ = ["adopt", "allocate", "give_back", "overlaps", "pack", "resolve", "resolve_out", "wrap", "writable_memory"]

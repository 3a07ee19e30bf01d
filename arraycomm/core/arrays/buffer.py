"""Buffer: an array as a backend sees it. Address, element count, dtype, device; nothing of the array's library.

A packed (C-contiguous) run of elements. Whoever holds a Buffer holds its memory, through `owner` (the array, a
memoryview or a DLPack capsule of it; None where arraycomm allocated the memory itself). Fields, all read-only:

    address       int, 0 allowed when count is 0
    count         elements
    dtype         DType's number
    device_type   DeviceType's number; 1 is the CPU (pinned host memory counts as CPU)
    device_index  int
    stream        where the contents are in order, a DLPack number: 0 in host memory; on CUDA devices 1 and 2 are the default
                  streams, everything else is a cudaStream_t. Who reads or writes there comes after what is enqueued on it.
    readonly      results may not be written here
    shape         tuple of ints
    owner         what must stay alive
    nbytes        size in bytes

`part(start, shape)` is a Buffer over the elements from `start` on. `memoryview(buffer)` and `numpy.frombuffer` read
host Buffers. The type is compiled (native/reader/buffer.c), because one is made for every array of every call.
"""

from arraycomm._engine import Buffer

__all__ = ["Buffer"]

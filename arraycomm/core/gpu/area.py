"""Memory of a device that the other ranks of the host reach by CUDA's IPC. What they take from this rank lies there for a moment.

The arrays themselves are not opened, though that would save a copy on the device. A handle stands for a whole allocation, which
must not be freed before everybody has closed it; but the libraries free as they like: torch's and CuPy's allocators when memory
is short, others with an array's last reference. Who keeps handles open does not learn of it, and to open and close one for each
operation waits for the driver. Memory of cudaMallocAsync and of torch's expandable segments has no handles at all.
"""

from __future__ import annotations

from .runtime import Runtime

# The other ranks take one piece while the next one comes: long beside a meeting of all ranks, and beside the turns of processes
# that share a GPU (all_reduce of 256 MiB by 8, 16, 32 MiB there: slower than through the host, 37 and 61 GB/s).
SLOT_BYTES = 32 << 20
_SLOTS = 2

_free: dict[int, list[tuple[int, bytes]]] = {}  # by device; the process's


class Area:
    """Two slots; of one group, and of the next one when nobody refers to it. Never freed: a peer may have it open still."""

    def __init__(self, cuda: Runtime, device: int) -> None:
        self._device = device
        free = _free.setdefault(device, [])
        self.address, self.handle = free.pop() if free else _allocate(cuda, device)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            _free[self._device].append((self.address, self.handle))


def _allocate(cuda: Runtime, device: int) -> tuple[int, bytes]:
    address = cuda.malloc(_SLOTS * SLOT_BYTES, device)
    try:
        return address, cuda.ipc_handle(address)
    except BaseException:
        cuda.free(address)
        raise


def slot(address: int, index: int) -> int:
    """Where piece `index` lies in an area."""
    return address + index % _SLOTS * SLOT_BYTES

"""Staging buffers in device memory, shared with the other ranks of the host by CUDA IPC: peers read this rank's data there.

The arrays themselves are not shared by IPC, though that would save a copy on the device. A handle stands for a whole allocation,
which must not be freed before all peers have closed it. But libraries free memory at any time: torch's and CuPy's allocators when
memory is short, others with an array's last reference. A peer with an open handle is not notified, and opening and closing one
per operation is a slow driver call. Memory of cudaMallocAsync and of torch's expandable segments has no handles at all.
"""

from __future__ import annotations

from .runtime import Runtime

# The other ranks take one piece while the next one comes: long beside a meeting of all ranks, and beside the turns of processes
# that share a GPU (all_reduce of 256 MiB by 8, 16, 32 MiB there: slower than through the host, 37 and 61 GB/s).
SLOT_BYTES = 32 << 20
_SLOTS = 2

_free: dict[int, list[tuple[int, bytes]]] = {}  # free areas of this process, by device


class Area:
    """Two slots, used by one group and then reused by another. Never freed: a peer may still have it open."""

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
    """The address of piece `index` in an area."""
    return address + index % _SLOTS * SLOT_BYTES

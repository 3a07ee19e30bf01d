"""Pinned host memory that GPUs copy to and from, cached for reuse: pinning pages takes longer than copying them."""

from __future__ import annotations

from ..base.errors import DistError
from ..base.log import log
from .runtime import Runtime

_SMALLEST = 64 << 10  # bytes
_KEPT_BYTES = 512 << 20  # maximum of free blocks after an operation


class Block:
    """Pinned memory; returns to its pool with the last reference. The owner ensures that no copy is pending then."""

    def __init__(self, pool: Pool, address: int, nbytes: int) -> None:
        self.pool, self.address, self.nbytes = pool, address, nbytes

    def __del__(self) -> None:
        self.pool.put(self.address, self.nbytes)


class Pool:
    """Blocks with sizes that are powers of two. Thread-safe."""

    def __init__(self, cuda: Runtime) -> None:
        self._cuda = cuda
        self._free: dict[int, list[int]] = {}  # list.pop and append are atomic: any thread returns blocks
        self._kept = 0

    def take(self, nbytes: int) -> Block:
        """A block of at least this size. ResourceError if no memory can be pinned."""
        size = max(_SMALLEST, 1 << max(0, nbytes - 1).bit_length())
        try:
            address = self._free.setdefault(size, []).pop()
            self._kept -= size
        except IndexError:
            address = self._cuda.host_alloc(size)
        return Block(self, address, size)

    def put(self, address: int, size: int) -> None:
        """Returns a block. Makes no CUDA call, because it also runs during garbage collection."""
        self._kept += size
        self._free.setdefault(size, []).append(address)

    def trim(self) -> None:
        """Frees blocks beyond the limit, the longest first."""
        for size in sorted(self._free, reverse=True):
            while self._kept > _KEPT_BYTES and self._free[size]:
                self._kept -= size
                try:
                    self._cuda.free_host(self._free[size].pop())
                except DistError as error:
                    log().warning("%s", error)

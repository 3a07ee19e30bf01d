"""Pinned host memory that GPUs copy to and from, kept for the next operation: to pin pages costs more than to copy them."""

from __future__ import annotations

from ..arrays.buffer import Buffer
from ..base.errors import DistError
from ..base.log import log
from .runtime import Runtime

_SMALLEST = 64 << 10  # bytes
_KEPT_BYTES = 512 << 20  # of free blocks, after an operation


class Block:
    """Pinned memory; goes back to its pool when nobody refers to it. Its owner sees to it that no copy is under way then."""

    def __init__(self, pool: Pool | Common, address: int, nbytes: int) -> None:
        self.pool, self.address, self.nbytes = pool, address, nbytes

    def __del__(self) -> None:
        self.pool.put(self.address, self.nbytes)


class Pool:
    """Blocks of a power of two. Any thread."""

    def __init__(self, cuda: Runtime) -> None:
        self._cuda = cuda
        self._free: dict[int, list[int]] = {}  # lists' pop and append are atomic: blocks come back from any thread
        self._kept = 0

    def take(self, nbytes: int) -> Block:
        """A block of at least as many bytes. ResourceError when there is no memory that can be pinned."""
        size = max(_SMALLEST, 1 << max(0, nbytes - 1).bit_length())
        try:
            address = self._free.setdefault(size, []).pop()
            self._kept -= size
        except IndexError:
            address = self._cuda.host_alloc(size)
        return Block(self, address, size)

    def put(self, address: int, size: int) -> None:
        """Calls nothing of CUDA: blocks go in garbage collections too."""
        self._kept += size
        self._free.setdefault(size, []).append(address)

    def trim(self) -> None:
        """Gives back what is beyond the limit, the longest blocks first."""
        for size in sorted(self._free, reverse=True):
            while self._kept > _KEPT_BYTES and self._free[size]:
                self._kept -= size
                try:
                    self._cuda.free_host(self._free[size].pop())
                except DistError as error:
                    log().warning("%s", error)


class Common:
    """Blocks of one length in memory that a group's ranks on this host all reach: what is in such blocks on all of them is not
    copied once more on the host."""

    def __init__(self, cuda: Runtime, memory: Buffer, nbytes: int) -> None:
        """memory: of Communicator.symmetric(); nbytes: of a block. Raises where CUDA does not pin it."""
        self._cuda, self._memory, self._nbytes = cuda, memory, nbytes
        cuda.pin(memory.address, memory.nbytes)
        self._free = list(range(memory.address, memory.address + memory.nbytes, nbytes))

    def take(self, nbytes: int) -> Block | None:
        """None where there is none, or none as long."""
        return Block(self, self._free.pop(), nbytes) if self._free and nbytes <= self._nbytes else None

    def put(self, address: int, _nbytes: int) -> None:
        self._free.append(address)

    def close(self) -> None:
        """When nothing is copied there any more."""
        self._cuda.unpin(self._memory.address)

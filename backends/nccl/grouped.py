"""Grouped: collectives that this version of NCCL lacks, as several of its calls in one ncclGroupStart/ncclGroupEnd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DType

from .library import IN_PROGRESS, Library
from .reductions import UINT8, Native

if TYPE_CHECKING:
    _Call = tuple[Any, ...]  # an NCCL function and its arguments

_WHOLE = 22907  # the first version whose premul_sum of a single rank writes all elements
_BLOCKS, _BLOCK = 32, 16384  # of NCCL's kernel: the maximum number of blocks, and the bytes per block


def _starts(sizes: Sequence[int], start: int) -> list[int]:
    """The address of each part."""
    return list(accumulate(sizes, initial=start))


def _parts(count: int, width: int) -> Iterator[tuple[int, int]]:
    """Offsets and lengths: first a part that divides evenly among all blocks, then the remainder in parts for one block."""
    start = count - count % _BLOCKS if count * width >= _BLOCKS * _BLOCK else 0
    if start:
        yield 0, start
    step = _BLOCK // width
    for first in range(start, count, step):
        yield first, min(step, count - first)


class Grouped:
    """Every method enqueues calls and returns the first error code. Sizes are in bytes."""

    def __init__(self, nccl: Library, rank: int, size: int) -> None:
        self._nccl, self._rank, self._size = nccl, rank, size

    def _together(self, calls: Iterable[_Call]) -> int:
        self._nccl.ncclGroupStart()
        code = 0
        for function, *arguments in calls:
            code = int(function(*arguments))
            if code not in (0, IN_PROGRESS):  # inside a group a call is only recorded
                break
        ended = int(self._nccl.ncclGroupEnd())  # an open group must be ended, also after an error
        return ended if code in (0, IN_PROGRESS) else code

    def scaled_alone(self, call: Callable[..., int], width: int) -> Callable[..., int]:
        """premul_sum (src, dst, count, ...) of a single rank, for this element size in bytes. Earlier versions give each block
        count / blocks elements, rounded down, and leave up to 31 elements at the end unwritten (NCCL's issue 1950)."""
        if self._size > 1 or self._nccl.version >= _WHOLE:
            return call

        def in_parts(src: int, dst: int, count: int, *rest: Any) -> int:
            return self._together((call, src + start * width, dst + start * width, length, *rest)
                                  for start, length in _parts(count, width))

        return in_parts

    def all_gather(self, src: Buffer, dst: Buffer, sizes: Sequence[int], comm: int, stream: int) -> int:
        starts = _starts(sizes, dst.address)
        return self._together((self._nccl.ncclBroadcast, src.address if root == self._rank else starts[root], starts[root], size,
                               UINT8, root, comm, stream) for root, size in enumerate(sizes) if size)

    def reduce_scatter(self, src: Buffer, dst: Buffer, counts: Sequence[int], how: Native, op: int, width: int, comm: int,
                       stream: int) -> int:
        starts = _starts([count * width for count in counts], src.address)
        return self._together((self._nccl.ncclReduce, starts[root], dst.address if root == self._rank else starts[root],
                               count * how.elements, how.dtype, op, root, comm, stream)
                              for root, count in enumerate(counts) if count)

    def gather(self, src: Buffer, dst: Buffer | None, root: int, comm: int, stream: int) -> int:
        size = src.nbytes
        if self._nccl.has("ncclGather"):
            return int(self._nccl.ncclGather(src.address, dst.address if dst else 0, size, UINT8, root, comm, stream))
        calls: list[_Call] = [(self._nccl.ncclSend, src.address, size, UINT8, root, comm, stream)]
        if dst is not None:
            calls += [(self._nccl.ncclRecv, dst.address + peer * size, size, UINT8, peer, comm, stream)
                      for peer in range(self._size)]
        return self._together(calls if size else ())

    def scatter(self, src: Buffer | None, dst: Buffer, root: int, comm: int, stream: int) -> int:
        size = dst.nbytes
        if self._nccl.has("ncclScatter"):
            return int(self._nccl.ncclScatter(src.address if src else 0, dst.address, size, UINT8, root, comm, stream))
        calls: list[_Call] = [(self._nccl.ncclRecv, dst.address, size, UINT8, root, comm, stream)]
        if src is not None:
            calls += [(self._nccl.ncclSend, src.address + peer * size, size, UINT8, peer, comm, stream)
                      for peer in range(self._size)]
        return self._together(calls if size else ())

    def all_to_all(self, src: Buffer, dst: Buffer, sends: Sequence[int] | None, receives: Sequence[int] | None, comm: int,
                   stream: int) -> int:
        """sends, receives: elements to and from each rank; None: equal counts."""
        part = src.nbytes // self._size
        if sends is None and self._nccl.has("ncclAlltoAll"):
            return int(self._nccl.ncclAlltoAll(src.address, dst.address, part, UINT8, comm, stream))
        width = DType(src.dtype).itemsize
        out = [part] * self._size if sends is None else [count * width for count in sends]
        into = [part] * self._size if receives is None else [count * width for count in receives]
        calls: list[_Call] = [(self._nccl.ncclSend, start, size, UINT8, peer, comm, stream)
                              for peer, (start, size) in enumerate(zip(_starts(out, src.address), out, strict=False)) if size]
        calls += [(self._nccl.ncclRecv, start, size, UINT8, peer, comm, stream)
                  for peer, (start, size) in enumerate(zip(_starts(into, dst.address), into, strict=False)) if size]
        return self._together(calls)

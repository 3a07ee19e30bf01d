"""Windows for one-sided communication: peers read and write a rank's array without its participation.

The target's engine does it (served.py). A window has its own group, so that its failure does not fail the program's group.
"""

from __future__ import annotations

from typing import Any

from ..arrays.buffer import Buffer
from ..arrays.dlpack import resolve, resolve_out
from ..arrays.joined import flat
from ..arrays.types import DeviceType, DType
from ..base.errors import CollectiveTimeout, DeviceError
from . import arguments
from .exchange import gather_integers, mismatch
from .group import Group
from .served import Served

REDUCTIONS = ("sum", "product", "min", "max", "band", "bor", "bxor")
_REFUSED = -1  # instead of a count


class Window:
    """One rank's end. Made by all ranks of the group together; closed by all together, or with the group.

    Attributes: counts (elements of every rank's array), dtype, buffer (this rank's array).
    Errors: ValueError for another dtype and a rank that there is not, RuntimeError for elements beyond the target's array, both
    before anything is sent; then what messages raise. put, get, accumulate and signal give the pending operations, to be
    waited for: none where they have been done.
    """

    def __init__(self, group: Group, x: Any, name: str, timeout: float | None = None) -> None:
        """x: contiguous and writable host memory; of one dtype on all ranks, of any size. name: of no other subgroup.

        What one rank cannot give is its TypeError or ValueError, and CollectiveMismatch on the others.
        """
        fault: Exception | None = None
        try:
            self.buffer = _own(x)
        except (TypeError, ValueError, DeviceError) as error:
            fault = error
        mine = [_REFUSED, 0] if fault else [self.buffer.count, self.buffer.dtype]
        told = gather_integers(group._communicator, mine, timeout)
        if fault is not None:
            raise fault
        _check_told(group, told)
        self.dtype, self.counts = self.buffer.dtype, [count for count, _ in told]
        self._group = group.subgroup(range(group.size), name)
        try:
            self._open(group)
        except BaseException:
            self._group.close()
            raise

    def _open(self, group: Group) -> None:
        serving = self._group._communicator.expose(self.buffer)
        if serving is None:
            raise DeviceError(f"group {group.name!r} has no windows: only arraycomm's own engine has them")
        self._carrier = Served(self._group, serving)
        self.fence(self._group.timeout)  # makes the connections, which needs the GIL

    def put(self, x: Any, rank: int, offset: int) -> list[Any]:
        """Writes x's elements into the target's array. Ended: x may be changed again."""
        source = flat(resolve(x))
        self._check(source, rank, offset)
        return self._carrier.put(source, rank, offset)

    def accumulate(self, x: Any, rank: int, offset: int, op: str) -> list[Any]:
        """As put, but each element becomes op(what is there, x's). Atomic among accumulates. Of REDUCTIONS."""
        if op not in REDUCTIONS:
            raise ValueError(f"accumulate takes one of {', '.join(REDUCTIONS)}, got {op!r}")
        reduction, source = arguments.reduction(op, self.dtype), flat(resolve(x))
        self._check(source, rank, offset)
        return self._carrier.accumulate(source, rank, offset, reduction)

    def get(self, out: Any, rank: int, offset: int) -> list[Any]:
        """Reads elements of the target's array into out. Ended: they are there."""
        to = flat(resolve_out(out))
        self._check(to, rank, offset)
        return self._carrier.get(to, rank, offset)

    def signal(self, rank: int) -> list[Any]:
        """One more signal at the target, after everything that this rank asked of it before."""
        self.check_rank(rank)
        return self._carrier.signal(rank)

    def wait_signal(self, rank: int, timeout: float) -> bool:
        """Takes one signal of that rank, and waits for it (seconds; 0: looks). Whether it came in time. Raises the window's
        failure if it has failed and there is none."""
        return self._carrier.wait_signal(rank, timeout)

    def no_signal(self, rank: int) -> CollectiveTimeout:
        """The error of who waited in vain."""
        return CollectiveTimeout(f"no signal of rank {rank} arrived in time at window {self._group.name!r} of "
                                 f"rank {self._group.rank}", ranks=(rank,), members=self._group.ranks)

    def fence(self, timeout: float) -> None:
        """All ranks call it. Returns when everything that any of them asked of any other before has taken effect."""
        late = self._carrier.fence(timeout)
        if late is not None:
            raise CollectiveTimeout(f"rank {late} has not reached the fence of window {self._group.name!r} within {timeout} s",
                                    ranks=(late,), members=self._group.ranks)

    def close(self) -> None:
        """All ranks call it: nothing is under way afterwards, and the array is the caller's alone. After a failure it does
        not wait for the others. Idempotent."""
        if self._group.closed:
            return
        try:
            if not self._carrier.failed:
                self.fence(self._group.timeout)
                self._group.barrier()
        finally:
            self._group.close()

    @property
    def closed(self) -> bool:
        return self._group.closed

    def _check(self, buffer: Buffer, rank: int, offset: int) -> None:
        self.check_rank(rank)
        if buffer.dtype != self.dtype:
            raise ValueError(f"the window's dtype is {DType(self.dtype).label}, the array's {DType(buffer.dtype).label}")
        arguments.integer("offset", offset)
        if offset < 0 or offset + buffer.count > self.counts[rank]:
            raise RuntimeError(f"{buffer.count} elements from {offset} on exceed the window size: rank {rank} has "
                               f"{self.counts[rank]} elements")

    def check_rank(self, rank: int) -> None:
        arguments.rank("rank", rank, self._group.size)


def _own(x: Any) -> Buffer:
    buffer = flat(resolve_out(x))
    if buffer.device_type != DeviceType.CPU:
        raise DeviceError("a window's array lies in host memory; arrays on a device can be put into it and got from it")
    return buffer


def _check_told(group: Group, told: list[tuple[int, ...]]) -> None:
    """Raises for a rank's invalid argument: all ranks have the same gathered values, so all raise."""
    refused = tuple(rank for rank, (count, _) in enumerate(told) if count == _REFUSED)
    if refused:
        raise mismatch(group, refused, f"new_window: rank {refused[0]} gave no array that can be a window's")
    for rank, (_, dtype) in enumerate(told):
        if dtype != told[0][1]:
            raise ValueError(f"a window has one dtype on all ranks: rank 0 gives {DType(told[0][1]).label} and rank {rank} "
                             f"{DType(dtype).label}")

"""Several Buffers as one: where they lie, when they lie one after the other, or in memory of its own.

Collectives move one run of elements; list forms give many arrays. Slices of one array, which such lists mostly are, need no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .buffer import Buffer
from .codec import as_bytes
from .dlpack import allocate
from .types import DType

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any


def _in_one_run(buffers: Sequence[Buffer]) -> bool:
    """Whether each one that has elements begins where the one before ends."""
    filled = [buffer for buffer in buffers if buffer.count] or buffers[:1]
    first = filled[0]
    end = first.address
    for buffer in filled:
        if buffer.address != end or (buffer.device_type, buffer.device_index) != (first.device_type, first.device_index):
            return False
        end += buffer.nbytes
    return True


def flat(buffer: Buffer) -> Buffer:
    """The same elements in one dimension."""
    return buffer if len(buffer.shape) == 1 else buffer.part(0, (buffer.count,))


def copy(source: Buffer, to: Buffer) -> None:
    """Host memory to host memory, as many bytes."""
    memoryview(as_bytes(to))[:] = memoryview(as_bytes(source))


def _over(buffers: Sequence[Buffer]) -> Buffer:
    first = next((buffer for buffer in buffers if buffer.count), buffers[0])
    count = sum(buffer.count for buffer in buffers)
    return Buffer(first.address, count, first.dtype, first.device_type, first.device_index,
                  any(buffer.readonly for buffer in buffers), (count,), tuple(buffers))


def _split(whole: Buffer, buffers: Sequence[Buffer]) -> list[tuple[Buffer, Buffer]]:
    pairs, start = [], 0
    for buffer in buffers:
        pairs.append((whole.part(start, (buffer.count,)), buffer))
        start += buffer.count
    return pairs


def joined(buffers: Sequence[Buffer]) -> Buffer:
    """The elements of all, in order, to be read. One dtype, at least one Buffer."""
    if len(buffers) == 1:
        return flat(buffers[0])
    if _in_one_run(buffers):
        return _over(buffers)
    whole = allocate((sum(buffer.count for buffer in buffers),), DType(buffers[0].dtype))
    for part, buffer in _split(whole, buffers):
        copy(buffer, part)
    return whole


def target(buffers: Sequence[Buffer]) -> tuple[Buffer, Callable[[], Any] | None]:
    """Where to write the elements of all, in order, and what to call when they are written (None: nothing)."""
    if len(buffers) == 1:
        return flat(buffers[0]), None
    if _in_one_run(buffers):
        return _over(buffers), None
    whole = allocate((sum(buffer.count for buffer in buffers),), DType(buffers[0].dtype))

    def spread() -> None:
        for part, buffer in _split(whole, buffers):
            copy(part, buffer)

    return whole, spread


def update(buffers: Sequence[Buffer]) -> tuple[Buffer, Callable[[], Any] | None]:
    """As target(), holding what the Buffers hold."""
    whole, spread = target(buffers)
    if spread is not None:
        for part, buffer in _split(whole, buffers):
            copy(buffer, part)
    return whole, spread

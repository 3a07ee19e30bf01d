"""Several Buffers as one: in place if they are contiguous, or in a packed copy.

Collectives move one run of elements; list forms have many arrays. In most cases these are slices of one array: no copy is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from ..base.errors import DeviceError
from .buffer import Buffer
from .codec import as_bytes
from .dlpack import allocate
from .types import DeviceType, DType

_CPU, _CUDA = int(DeviceType.CPU), (int(DeviceType.CUDA), int(DeviceType.CUDA_MANAGED))


def _in_one_run(buffers: Sequence[Buffer]) -> bool:
    """Whether the non-empty ones are contiguous in memory, and all are ordered on one stream."""
    filled = [buffer for buffer in buffers if buffer.count] or buffers[:1]
    first = filled[0]
    end = first.address
    for buffer in filled:
        if buffer.address != end or _place(buffer) != _place(first) or buffer.stream != first.stream:
            return False
        end += buffer.nbytes
    return True


def _place(buffer: Buffer) -> tuple[int, int]:
    return buffer.device_type, buffer.device_index


def flat(buffer: Buffer) -> Buffer:
    """The same elements in one dimension."""
    return buffer if len(buffer.shape) == 1 else buffer.part(0, (buffer.count,))


def copy(source: Buffer, to: Buffer) -> None:
    """As many bytes, within host memory, on a CUDA device or between them, in the order of both Buffers' streams. In host memory
    they are there when this returns."""
    if source.device_type == to.device_type == _CPU:
        memoryview(as_bytes(to))[:] = memoryview(as_bytes(source))
        return
    from ..gpu.memory import copy_on  # not for those whose arrays are on the host

    copy_on(source, to)


def on_host(buffer: Buffer) -> Buffer:
    """Itself, or a copy of what lies on a device."""
    if buffer.device_type == _CPU:
        return buffer
    made = allocate(buffer.shape, DType(buffer.dtype))
    copy(buffer, made)
    return made


@contextmanager
def through_host(to: Buffer) -> Iterator[Buffer]:
    """Host memory for a result: the Buffer itself, or a staging buffer that is copied to the device afterwards."""
    memory = to if to.device_type == _CPU else allocate(to.shape, DType(to.dtype))
    yield memory
    if memory is not to:
        copy(memory, to)


def clear(to: Buffer) -> None:
    """Zeros."""
    with through_host(to) as memory:
        memoryview(as_bytes(memory))[:] = bytes(to.nbytes)


def duplicate(source: Buffer) -> Buffer:
    """A writable copy on the same device."""
    made = room(source, source.shape)
    copy(source, made)
    return made


def room(like: Buffer, shape: tuple[int, ...]) -> Buffer:
    """Uninitialised memory of the dtype, on the device and in the order of the stream of `like`."""
    if like.device_type == _CPU:
        return allocate(shape, DType(like.dtype))
    if like.device_type not in _CUDA:
        raise DeviceError("lists of arrays, and strided ones to write into, must be in host memory or on a CUDA device")
    from ..gpu.memory import allocate_on

    return allocate_on(like, shape, like.stream)


def _together(buffers: Sequence[Buffer]) -> Buffer:
    """Memory for all. ValueError if they are on different devices."""
    first = buffers[0]
    if any(_place(one) != _place(first) for one in buffers):
        raise ValueError("the arrays of one list must be on one device")
    return room(first, (sum(buffer.count for buffer in buffers),))


def _over(buffers: Sequence[Buffer]) -> Buffer:
    """One Buffer over contiguous Buffers."""
    first = next((buffer for buffer in buffers if buffer.count), buffers[0])
    return _holding(first, buffers, any(buffer.readonly for buffer in buffers))


def _holding(first: Buffer, buffers: Sequence[Buffer], readonly: bool) -> Buffer:
    """As many elements as the Buffers have, from where `first` begins. Holds all of them."""
    count = sum(buffer.count for buffer in buffers)
    return Buffer(first.address, count, first.dtype, *_place(first), readonly, (count,), (first, *buffers), first.stream,
                  any(buffer.fleeting for buffer in buffers))


def _split(whole: Buffer, buffers: Sequence[Buffer]) -> list[tuple[Buffer, Buffer]]:
    starts = accumulate((buffer.count for buffer in buffers), initial=0)
    return [(whole.part(start, (buffer.count,)), buffer) for start, buffer in zip(starts, buffers, strict=False)]


def joined(buffers: Sequence[Buffer]) -> Buffer:
    """The elements of all, in order, to be read. One dtype, at least one Buffer."""
    if len(buffers) == 1:
        return flat(buffers[0])
    if _in_one_run(buffers):
        return _over(buffers)
    whole = _together(buffers)
    for part, buffer in _split(whole, buffers):
        copy(buffer, part)
    return _holding(whole, buffers, readonly=False)  # on a device the copies may still be pending


def target(buffers: Sequence[Buffer]) -> tuple[Buffer, Callable[[], Any] | None]:
    """The memory for the elements of all, in order, and a function to call after the write (None: not needed)."""
    if len(buffers) == 1:
        return flat(buffers[0]), None
    if _in_one_run(buffers):
        return _over(buffers), None
    whole = _together(buffers)

    def spread() -> None:
        for part, buffer in _split(whole, buffers):
            copy(part, buffer)

    return whole, spread


def update(buffers: Sequence[Buffer]) -> tuple[Buffer, Callable[[], Any] | None]:
    """As target(), with the Buffers' contents."""
    whole, spread = target(buffers)
    if spread is not None:
        for part, buffer in _split(whole, buffers):
            copy(buffer, part)
        whole = _holding(whole, buffers, readonly=False)
    return whole, spread

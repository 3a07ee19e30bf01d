"""Buffer: an array as a backend sees it. Address, element count, dtype, device; nothing of the array's library."""

from __future__ import annotations

from typing import NamedTuple


class Buffer(NamedTuple):
    """A packed (C-contiguous) run of elements.

    The owner keeps the memory alive: whoever holds a Buffer during an asynchronous operation holds its array.
    """

    address: int  # 0 allowed when count is 0
    count: int  # elements
    dtype: int  # DType's number
    device_type: int  # DeviceType's number; 1 is the CPU
    device_index: int
    readonly: bool  # results may not be written here
    shape: tuple[int, ...]
    owner: object  # what must stay alive

"""Place: what is asked of CUDA before every operation, into memory that each thread makes once."""

from __future__ import annotations

import threading

from arraycomm.core.base.typed import Any
from arraycomm.core.gpu.runtime import Runtime


class _Answer(threading.local):
    out: Any = None


class Place:
    """Of one device. Whatever is out of the ordinary is left to Runtime, which explains it."""

    def __init__(self, cuda: Runtime, device: int) -> None:
        self._made, self._answer, self._device = cuda.ffi.new, _Answer(), device
        self._get_device, self._is_capturing = cuda.lib.cudaGetDevice, cuda.lib.cudaStreamIsCapturing

    def is_current(self) -> bool:
        """Whether the device is the calling thread's current one."""
        out = self._answer.out
        if out is None:
            out = self._answer.out = self._made("int *")
        return not self._get_device(out) and out[0] == self._device

    def ordinary(self, stream: int) -> bool:
        """Whether it is, and the stream surely under no capture."""
        if not self.is_current():
            return False
        out = self._answer.out
        return not (self._is_capturing(stream, out) or out[0])

"""Served: a window's operations by active messages.

Messages use TCP between hosts and shared memory inside one. A request is a message to the target rank, whose
engine executes it (backend.Serving; serve.c of the socket engine). A request is a header (tag 0) and, for put and accumulate, its
elements: in the header where they are few, else behind it (tag 1). What get asks for comes back under a tag of its own.
"""

from __future__ import annotations

import array
import itertools
import threading
import time
from typing import Any

from arraycomm._engine import ffi

from ..arrays.buffer import Buffer
from ..arrays.types import DeviceType, DType, ReduceOp
from ..interface.backend import Serving
from .group import Group

PUT, GET, ACCUMULATE, SIGNAL, FENCE = range(5)
INLINE = 64  # bytes of elements that travel in the header
_WORDS = 5  # of a header, before the elements: kind, offset, count, detail, bytes of elements
_HEADERS, _ELEMENTS, _ANSWERS = range(3)  # tags; answers have the last one and above


class Served:
    """One rank's side. group: the window's. Methods return pending operations for the caller to wait on."""

    def __init__(self, group: Group, serving: Serving) -> None:
        self._group, self._serving = group, serving
        self._requests, self._fences = itertools.count(), 0
        self._sending = threading.Lock()  # keeps a header and its elements together
        self.wait_signal = serving.wait_signal

    def put(self, source: Buffer, rank: int, offset: int) -> list[Any]:
        return self._give(PUT, source, rank, offset, 0)

    def accumulate(self, source: Buffer, rank: int, offset: int, op: ReduceOp) -> list[Any]:
        return self._give(ACCUMULATE, source, rank, offset, op.code)

    def get(self, to: Buffer, rank: int, offset: int) -> list[Any]:
        request = next(self._requests)
        pending = self._group.irecv(rank, _ANSWERS + request, out=to)
        return [pending, self._ask(rank, GET, offset, to.count, request)]

    def signal(self, rank: int) -> list[Any]:
        return [self._ask(rank, SIGNAL)]

    def fence(self, timeout: float) -> int | None:
        """Collective. None if all ranks have called it, or a rank that is late at the timeout.

        Two rounds: after the first, what all ranks did to this rank's array is there; after the second, what they did to every
        other's, which a get that follows may ask for."""
        end = time.monotonic() + timeout
        for _ in range(2):
            self._fences += 1
            for work in [self._ask(rank, FENCE) for rank in range(self._group.size)]:
                work.wait()
            late = self._serving.fenced(self._fences, max(0.0, end - time.monotonic()))
            if late is not None:
                return late
        return None

    @property
    def failed(self) -> bool:
        """Whether the group has failed."""
        return self._serving.failed

    def _give(self, kind: int, source: Buffer, rank: int, offset: int, op: int) -> list[Any]:
        with self._sending:
            nbytes = source.count * DType(source.dtype).itemsize
            if nbytes <= INLINE and source.device_type == DeviceType.CPU:
                return [self._ask(rank, kind, offset, source.count, op, source=source, nbytes=nbytes)]
            asked = self._ask(rank, kind, offset, source.count, op)
            try:
                return [asked, self._group.isend(source, rank, _ELEMENTS)]
            except BaseException as error:  # otherwise the next elements would be matched to this header
                self._group.abort(f"{type(error).__name__} between a window's request and its elements")
                raise

    def _ask(self, rank: int, kind: int, offset: int = 0, count: int = 0, detail: int = 0, *, source: Buffer | None = None,
             nbytes: int = -1) -> Any:
        header = array.array("q", [kind, offset, count, detail, nbytes, *_EMPTY])
        if source is not None:
            ffi.memmove(memoryview(header).cast("B")[8 * _WORDS :], ffi.cast("char *", source.address), nbytes)
        return self._group.isend(header, rank, _HEADERS)


_EMPTY = [0] * (INLINE // 8)

"""Exposed: memory of a group's ranks that each of them reads and writes by itself, over the engine (rma.c)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from arraycomm._engine import ffi, lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DType, ReduceOp
from arraycomm.core.base.errors import Aborted
from arraycomm.core.group.arguments import nanoseconds


class Exposed:
    """See core/interface/backend.py. Made by expose(), called by all ranks. Holds the memory: peers write to it until the end."""

    direct: Literal[True] = True

    def __init__(self, rma: Any, buffer: Buffer, error: Callable[[int], Exception]) -> None:
        self._rma, self._buffer, self._error = ffi.gc(rma, lib.acomm_rma_free), buffer, error
        self._width = DType(buffer.dtype).itemsize
        self.closed = self.failed = False

    def put(self, source: Buffer, rank: int, offset: int) -> None:
        self._check(lib.acomm_rma_put(self._open(), rank, offset * self._width, source.address, source.count * self._width))

    def get(self, to: Buffer, rank: int, offset: int) -> None:
        self._check(lib.acomm_rma_get(self._open(), rank, offset * self._width, to.address, to.count * self._width))

    def accumulate(self, source: Buffer, rank: int, offset: int, op: ReduceOp) -> None:
        self._check(lib.acomm_rma_accumulate(self._open(), rank, offset * self._width, source.address, source.count, source.dtype,
                                             op.code))

    def signal(self, rank: int) -> None:
        self._check(lib.acomm_rma_signal(self._open(), rank))

    def wait_signal(self, rank: int, timeout: float) -> bool:
        code = lib.acomm_rma_wait(self._open(), rank, nanoseconds(timeout))
        self._check(min(code, 0))
        return bool(code == 0)

    def fence(self, timeout: float) -> int | None:
        late = ffi.new("int32_t *")
        code = lib.acomm_rma_fence(self._open(), nanoseconds(timeout), late)
        self._check(min(code, 0))
        return int(late[0]) if code else None

    def freed(self) -> None:
        """The group has been closed."""

    def _open(self) -> Any:
        if self.closed:
            raise Aborted("the window's group is closed")
        return self._rma

    def _check(self, code: int) -> None:
        if code:
            error = self._error(code)  # or raises what a signal handler raised
            self.failed = True
            raise error


def expose(group: Any, arenas: Any, buffer: Buffer, timeout: int, error: Callable[[int], Exception]) -> Exposed | None:
    """None where not all ranks reach each other's memory."""
    out = ffi.new("acomm_rma **")
    code = lib.acomm_rma_open(group, arenas, buffer.address, buffer.nbytes, timeout, out)
    if code == lib.ACOMM_UNSUPPORTED:
        return None
    if code:
        raise error(code)
    return Exposed(out[0], buffer, error)

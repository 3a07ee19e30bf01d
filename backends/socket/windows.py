"""Windows of the engine: memory of a group's ranks with one-sided access: directly (rma.c), or by messages that the target's
engine serves (serve.c). See core/interface/backend.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

from arraycomm._engine import ffi, lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DType, ReduceOp
from arraycomm.core.base.errors import Aborted
from arraycomm.core.group.arguments import nanoseconds

_kept: set[Serving] = set()  # kept alive: the engine uses their memory until the group is closed


class _Window:
    """Base class. handle: the engine's. Keeps the buffer alive."""

    def __init__(self, handle: Any, buffer: Buffer, error: Callable[[int], Exception]) -> None:
        self._handle, self._buffer, self._error = handle, buffer, error
        self.closed = False

    def _open(self) -> Any:
        if self.closed:
            raise Aborted("the window's group is closed")
        return self._handle

    def _check(self, code: int) -> None:
        if code:
            raise self._error(code)  # or the exception of a signal handler


class Serving(_Window):
    """A window served by messages. Construction is collective."""

    direct: Literal[False] = False

    def __init__(self, group: Any, buffer: Buffer, error: Callable[[int], Exception],
                 inside: AbstractContextManager[object]) -> None:
        """inside: a context manager that delays the group's close() by another thread."""
        out = ffi.new("acomm_served **")
        code = lib.acomm_served_open(group, buffer.address, buffer.count, buffer.dtype, out)
        if code:
            raise error(code)
        super().__init__(out[0], buffer, error)
        self._group, self._inside = group, inside
        _kept.add(self)

    def wait_signal(self, rank: int, timeout: float) -> bool:
        with self._inside:
            code = lib.acomm_served_wait(self._open(), rank, nanoseconds(timeout))
        self._check(min(code, 0))
        return bool(code == 0)

    def fenced(self, number: int, timeout: float) -> int | None:
        late = ffi.new("int32_t *")
        with self._inside:
            code = lib.acomm_served_fence(self._open(), number, nanoseconds(timeout), late)
        self._check(min(code, 0))
        return int(late[0]) if code else None

    @property
    def failed(self) -> bool:
        with self._inside:
            return self.closed or bool(lib.acomm_group_failure(self._group, ffi.new("acomm_failure *")))

    def freed(self) -> None:
        """The group has been closed."""
        _kept.discard(self)
        lib.acomm_served_free(self._handle)


class Exposed(_Window):
    """A window with direct access, made by expose(). Peers write to the memory until the group is closed."""

    direct: Literal[True] = True

    def __init__(self, rma: Any, buffer: Buffer, error: Callable[[int], Exception]) -> None:
        super().__init__(ffi.gc(rma, lib.acomm_rma_free), buffer, error)
        self._width = DType(buffer.dtype).itemsize
        self.failed = False

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

    def _check(self, code: int) -> None:
        if code:
            error = self._error(code)
            self.failed = True
            raise error


def expose(group: Any, arenas: Any, buffer: Buffer, timeout: int, error: Callable[[int], Exception]) -> Exposed | None:
    """A window with direct access; None if a rank cannot map a peer's memory. Collective."""
    out = ffi.new("acomm_rma **")
    code = lib.acomm_rma_open(group, arenas, buffer.address, buffer.nbytes, timeout, out)
    if code == lib.ACOMM_UNSUPPORTED:
        return None
    if code:
        raise error(code)
    return Exposed(out[0], buffer, error)

"""Windows of the engine: memory of a group's ranks with one-sided access, by messages that the target's engine serves (serve.c).
See core/interface/backend.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from arraycomm._engine import ffi, lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.base.errors import Aborted
from arraycomm.core.group.arguments import nanoseconds

_kept: set[Serving] = set()  # kept alive: the engine uses their memory until the group is closed


class Serving:
    """A window served by messages. Construction is collective. Keeps the buffer alive."""

    def __init__(self, group: Any, buffer: Buffer, error: Callable[[int], Exception],
                 inside: AbstractContextManager[object]) -> None:
        """inside: a context manager that delays the group's close() by another thread."""
        out = ffi.new("acomm_served **")
        code = lib.acomm_served_open(group, buffer.address, buffer.count, buffer.dtype, out)
        if code:
            raise error(code)
        self._handle, self._buffer, self._error, self._group, self._inside = out[0], buffer, error, group, inside
        self.closed = False
        _kept.add(self)

    def _open(self) -> Any:
        if self.closed:
            raise Aborted("the window's group is closed")
        return self._handle

    def _check(self, code: int) -> None:
        if code:
            raise self._error(code)  # or the exception of a signal handler

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

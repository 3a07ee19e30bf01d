"""Canary: a receive on the host that never comes. It ends when a peer is lost or aborts the group, and says so."""

from __future__ import annotations

import time

from arraycomm.core.backend import Communicator, Work
from arraycomm.core.dlpack import allocate
from arraycomm.core.errors import DistError
from arraycomm.core.types import DType

_TAG = 2**62 + 0x6E63636C  # nobody sends with it
_FOREVER = 1e9  # s


class Canary:
    """`since`: when its end was first seen, by time.monotonic()."""

    def __init__(self, host: Communicator) -> None:
        self.since = 0.0
        self._error: DistError | None = None
        self._pending: Work | None = None
        if host.size > 1:
            self._pending = host.recv(allocate((1,), DType.UINT8), None, _TAG, timeout=_FOREVER, async_op=True)

    def error(self) -> DistError | None:
        """What ended the group; None: nothing has. Does not block."""
        if self._error is None and self._pending is not None and self._pending.done():
            self.since = time.monotonic()
            try:
                self._pending.wait()
            except DistError as error:
                self._error = error
        return self._error

"""Canary: a receive on the host that never comes. It ends when a peer is lost or aborts the group, and says so."""

from __future__ import annotations

import time

from arraycomm.core.arrays.dlpack import allocate
from arraycomm.core.arrays.types import DType
from arraycomm.core.base.errors import DistError, PeerLost
from arraycomm.core.interface.backend import Communicator, Work

_TAG = 2**63 - 1  # TAG_WATCH of the engine
_FOREVER = 1e9  # s
_LATER, _STEP = 0.25, 1e-3  # s that it may come after NCCL, and between looks


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

    def check(self) -> None:
        """Raises what ended the group."""
        error = self.error()
        if error is not None:
            raise error

    def named(self, error: DistError) -> DistError:
        """The error, or what ended the group where that is a peer's loss: NCCL may notice it first, and does not say whose."""
        end = time.monotonic() + (_LATER if isinstance(error, PeerLost) and self._pending is not None else 0)
        while self.error() is None and time.monotonic() < end:
            time.sleep(_STEP)
        return self._error if isinstance(error, PeerLost) and isinstance(self._error, PeerLost) else error

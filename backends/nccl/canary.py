"""Canary: a host receive that no message matches. It fails when a peer is lost or aborts the group: failure detection."""

from __future__ import annotations

import time

from arraycomm.core.arrays.dlpack import allocate
from arraycomm.core.arrays.types import DType
from arraycomm.core.base.errors import DistError, PeerLost
from arraycomm.core.interface.backend import Communicator, Work

_TAG = 2**63 - 1  # TAG_WATCH of the engine
_FOREVER = 1e9  # s
_LATER, _STEP = 0.25, 1e-3  # s: how long after NCCL's error it may fail, and the polling interval


class Canary:
    """`since`: time.monotonic() at which its failure was first detected."""

    def __init__(self, host: Communicator) -> None:
        self.since = 0.0
        self._error: DistError | None = None
        self._pending: Work | None = None
        if host.size > 1:
            self._pending = host.recv(allocate((1,), DType.UINT8), None, _TAG, timeout=_FOREVER, async_op=True)

    def error(self) -> DistError | None:
        """The error that failed the group, or None. Does not block."""
        if self._error is None and self._pending is not None and self._pending.done():
            self.since = time.monotonic()
            try:
                self._pending.wait()
            except DistError as error:
                self._error = error
        return self._error

    def check(self) -> None:
        """Raises the error that failed the group."""
        error = self.error()
        if error is not None:
            raise error

    def named(self, error: DistError) -> DistError:
        """The error, or PeerLost if a peer was lost: NCCL may detect the loss first, and does not name the rank."""
        end = time.monotonic() + (_LATER if isinstance(error, PeerLost) and self._pending is not None else 0)
        while self.error() is None and time.monotonic() < end:
            time.sleep(_STEP)
        return self._error if isinstance(error, PeerLost) and isinstance(self._error, PeerLost) else error

"""The GPU backend: NCCL, loaded at run time, with nothing to compile.

Collectives of host arrays use a socket communicator of the same ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from arraycomm.core.arrays.types import DeviceType
from arraycomm.core.base.errors import DistBackendError
from arraycomm.core.bootstrap.rendezvous import Rendezvous

from .declarations import version_text

if TYPE_CHECKING:
    from arraycomm.core.interface.backend import Communicator

__all__ = ["NcclBackend"]

# Operations with a fallback to other calls, and the native function that newer versions have.
_NATIVE = {"all_to_all": "ncclAlltoAll", "gather": "ncclGather", "scatter": "ncclScatter"}


class NcclBackend:
    """Follows arraycomm.core.interface.backend.Backend.

    options: fields of ncclConfig_t by name, for the communicators that it opens. high_priority: of the stream of
    asynchronous operations. device: the ordinal of this rank's GPU; None: the current one. lazy: the first collective
    on a GPU array makes the NCCL communicator, on the array's device.
    """

    name = "nccl"
    on_gpus = "arraycomm.core.gpu.staged:Staged"
    devices = frozenset(map(int, (DeviceType.CUDA, DeviceType.CUDA_MANAGED, DeviceType.CPU, DeviceType.CUDA_HOST)))

    def __init__(self) -> None:
        self.options: Mapping[str, Any] = {}
        self.high_priority = False
        self.device: int | None = None
        self.lazy = False

    def unavailable(self) -> str | None:
        from .library import library

        try:
            found = library()
        except DistBackendError as error:
            return str(error)
        from arraycomm.core.gpu.runtime import unavailable

        missing = unavailable()
        return None if missing is None else f"NCCL {version_text(found.version)} is here ({found.path}), but {missing}"

    def describe(self) -> dict[str, str]:
        """For arraycomm-info."""
        from .library import library

        found = library()
        return {"library": f"NCCL {version_text(found.version)} ({found.path})",
                "native": ", ".join(f"{what} {'yes' if found.has(name) else 'no'}" for what, name in _NATIVE.items())}

    def meet(self, timeout: float, name: str) -> None:
        return None  # no environment to detect

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> Communicator:
        if self.lazy:
            from .lazy import open_lazily

            return open_lazily(meeting, name, timeout, self.options, priority=self.high_priority)
        from .opening import open_world

        return open_world(meeting, name, timeout, self.options, priority=self.high_priority, device=self.device)

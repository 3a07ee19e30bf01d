"""Handle: one ncclComm_t that never blocks, from its making to its end. Every call that may take its time is polled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from arraycomm.core.errors import CollectiveTimeout, DistError

from . import config
from .errors import IN_PROGRESS, translate
from .library import Library

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

_SHORTEST, _LONGEST = 2e-5, 2e-3  # s between looks at a communicator that is in progress: NCCL has nothing to sleep on


class Handle:
    """`who` stands in errors: "rank 0 of 2 in group 'world'". `check`, called while it polls, raises what ended the group.

    Not thread-safe: NcclCommunicator has a lock around it.
    """

    def __init__(self, nccl: Library, who: str, check: Callable[[], None]) -> None:
        self.nccl, self.who, self.check = nccl, who, check
        self.comm = 0  # 0: not made yet, or ended
        self._out = nccl.ffi.new("int *")

    # ---- making one; all its ranks do ----

    def init(self, size: int, rank: int, unique_id: bytes, options: Mapping[str, Any], timeout: float) -> None:
        id_ = self.nccl.ffi.new("ncclUniqueId *")
        self.nccl.ffi.memmove(id_, unique_id, len(unique_id))
        made, alive = config.make(self.nccl, options)
        out = self.nccl.ffi.new("uintptr_t *")
        code = self.nccl.ncclCommInitRankConfig(out, size, id_[0], rank, made)
        self.comm = int(out[0])
        try:
            self.settle(code, "ncclCommInitRankConfig", timeout)
        except BaseException:
            self.abort()
            raise
        del alive  # NCCL has read it


    # ---- using it ----

    def settle(self, code: int, name: str, timeout: float) -> None:
        """Returns when what gave this code is done with on the host. Raises what came of it, CollectiveTimeout."""
        if code == 0:
            return
        end, pause = time.monotonic() + timeout, _SHORTEST
        while code == IN_PROGRESS:
            self.check()
            code = self.state()
            if code == IN_PROGRESS:
                if time.monotonic() >= end:
                    raise CollectiveTimeout(f"{self.who}: {name} is still in progress after {timeout:g} s: not all ranks "
                                            "have called it")
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
        if code:
            raise self.error(code, name)

    def state(self) -> int:
        """0, in progress, or the code of what failed meanwhile."""
        code = self.nccl.ncclCommGetAsyncError(self.comm, self._out)
        return int(code or self._out[0])

    def failed(self) -> int:
        """The code of what failed meanwhile, otherwise 0."""
        code = self.state() if self.comm else 0
        return 0 if code == IN_PROGRESS else code

    def error(self, code: int, name: str) -> DistError:
        return translate(self.nccl, code, f"{self.who}: {name} failed", self.comm)

    # ---- its end ----

    def finish(self, timeout: float) -> None:
        """In good order: when all ranks are done with what they have under way. Raises where that does not come."""
        self.settle(self.nccl.ncclCommFinalize(self.comm), "ncclCommFinalize", timeout)
        comm, self.comm = self.comm, 0
        code = self.nccl.ncclCommDestroy(comm)
        if code:
            raise translate(self.nccl, code, f"{self.who}: ncclCommDestroy failed")

    def abort(self) -> None:
        """At once, whatever is under way; what runs on the device is stopped. Idempotent."""
        comm, self.comm = self.comm, 0
        if comm:
            self.nccl.ncclCommAbort(comm)

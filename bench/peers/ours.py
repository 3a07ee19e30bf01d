"""arraycomm itself. The driver chooses the transport by ARRAYCOMM_TRANSPORT."""

from __future__ import annotations

from functools import partial
from typing import Any

from .protocol import Call, Peer


class Contender(Peer):
    def __init__(self) -> None:
        import arraycomm

        self.group: Any = arraycomm.init().__enter__()
        self.rank, self.size = self.group.rank, self.group.size

    def call(self, operation: str, x: Any, out: Any) -> Call:
        group = self.group
        if operation == "sendrecv":
            return self.one_way(partial(group.send, x), lambda source: group.recv(x, source, out=out))
        if operation == "barrier":
            barrier: Call = group.barrier
            return barrier
        if operation == "broadcast":
            return partial(group.broadcast, x, 0, out=out)
        return partial(getattr(group, operation), x, out=out)

    def barrier(self) -> None:
        self.group.barrier()

    def close(self) -> None:
        self.group.close()

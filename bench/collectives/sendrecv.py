from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective


class SendRecv(Collective):
    """Every rank sends to the next and receives from the one before, as nccl-tests' sendrecv."""

    name = "sendrecv"

    def sources(self, case: Case) -> list[Source]:
        return [Source(((case.rank - 1) % case.size,), 0, case.count)]

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        following, previous = (case.rank + 1) % case.size, (case.rank - 1) % case.size
        into = {"like": x} if out is None else {"out": out}

        def exchange() -> Any:
            sending = group.isend(x, following)
            received = group.recv(previous, **into)
            sending.wait()
            return received.array

        return exchange

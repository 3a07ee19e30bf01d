from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective, Shared


class AllReduce(Collective):
    name = "all_reduce"
    reduces = True

    def sources(self, case: Case) -> list[Source]:
        return [Source(case.everyone, 0, case.count)]

    def factor(self, size: int) -> float:
        return 2 * (size - 1) / size

    def shared(self, case: Case) -> Shared:
        return Shared(case.count, (0, case.count), (0, case.count))

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        return lambda: group.all_reduce(x, op, out=out)

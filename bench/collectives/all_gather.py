from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective, Shared


class AllGather(Collective):
    name = "all_gather"
    divided = True

    def sources(self, case: Case) -> list[Source]:
        return [Source((rank,), 0, case.count) for rank in case.everyone]

    def shared(self, case: Case) -> Shared:
        own = (case.rank * case.count, (case.rank + 1) * case.count)
        return Shared(case.count * case.size, own, (0, case.count * case.size))

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        return lambda: group.all_gather(x, out=out)

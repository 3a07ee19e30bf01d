from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective, Shared


class ReduceScatter(Collective):
    name = "reduce_scatter"
    reduces = True
    divided = True

    def given(self, case: Case) -> int:
        return case.count * case.size

    def sources(self, case: Case) -> list[Source]:
        return [Source(case.everyone, case.rank * case.count, case.count)]

    def shared(self, case: Case) -> Shared:
        own = (case.rank * case.count, (case.rank + 1) * case.count)
        return Shared(case.count * case.size, (0, case.count * case.size), own)

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        return lambda: group.reduce_scatter(x, op, out=out)

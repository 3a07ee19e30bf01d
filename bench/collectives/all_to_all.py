from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective


class AllToAll(Collective):
    name = "all_to_all"
    divided = True

    def given(self, case: Case) -> int:
        return case.count * case.size

    def sources(self, case: Case) -> list[Source]:
        return [Source((rank,), case.rank * case.count, case.count) for rank in case.everyone]

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        return lambda: group.all_to_all(x, out=out)

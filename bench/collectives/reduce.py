from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective, Shared


class Reduce(Collective):
    name = "reduce"
    reduces = True
    rooted = True

    def sources(self, case: Case) -> list[Source] | None:
        return [Source(case.everyone, 0, case.count)] if case.is_root else None

    def shared(self, case: Case) -> Shared:
        return Shared(case.count, (0, case.count), (0, case.count) if case.is_root else None)

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        return lambda: group.reduce(x, case.root, op, out=out if case.is_root else None)

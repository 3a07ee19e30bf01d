from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective, Shared


class Gather(Collective):
    name = "gather"
    rooted = True
    divided = True

    def sources(self, case: Case) -> list[Source] | None:
        return [Source((rank,), 0, case.count) for rank in case.everyone] if case.is_root else None

    def shared(self, case: Case) -> Shared:
        own = (case.rank * case.count, (case.rank + 1) * case.count)
        return Shared(case.count * case.size, own, (0, case.count * case.size) if case.is_root else None)

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        return lambda: group.gather(x, case.root, out=out if case.is_root else None)

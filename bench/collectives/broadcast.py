from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective, Shared


class Broadcast(Collective):
    name = "broadcast"
    rooted = True

    def given(self, case: Case) -> int:
        return case.count if case.is_root else 0

    def sources(self, case: Case) -> list[Source]:
        return [Source((case.root,), 0, case.count)]

    def shared(self, case: Case) -> Shared:
        return Shared(case.count, (0, case.count), (0, case.count))

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        return lambda: group.broadcast(x, case.root, out=out)

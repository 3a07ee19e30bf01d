from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective, Shared


class Scan(Collective):
    name = "scan"
    reduces = True

    def sources(self, case: Case) -> list[Source]:
        return [Source(case.everyone[: case.rank + 1], 0, case.count)]

    def shared(self, case: Case) -> Shared:
        return Shared(case.count, (0, case.count), (0, case.count))

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        method = getattr(group, self.name)
        return lambda: method(x, op, out=out)


class Exscan(Scan):
    name = "exscan"

    def sources(self, case: Case) -> list[Source]:
        return [Source(case.everyone[: case.rank], 0, case.count)]

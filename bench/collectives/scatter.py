from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective


class Scatter(Collective):
    name = "scatter"
    rooted = True
    divided = True

    def given(self, case: Case) -> int:
        return case.count * case.size if case.is_root else 0

    def sources(self, case: Case) -> list[Source]:
        return [Source((case.root,), case.rank * case.count, case.count)]

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        if case.is_root:
            return lambda: group.scatter(x, case.root, out=out)
        return lambda: group.scatter(None, case.root, like=x if out is None else None, out=out)

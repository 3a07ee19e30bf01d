from __future__ import annotations

from functools import partial
from typing import Any

from ..data import Source
from .base import Call, Case, Collective


class AllReduce(Collective):
    name = "all_reduce"
    reduces = True
    in_place = True

    def sources(self, case: Case) -> list[Source]:
        return [Source(case.everyone, 0, case.count)]

    def factor(self, size: int) -> float:
        return 2 * (size - 1) / size

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        return partial(group.all_reduce, x, op, out=out)

from __future__ import annotations

from functools import partial
from typing import Any

from ..data import Source
from .base import Call, Case, Collective


class AllGather(Collective):
    name = "all_gather"
    divided = True

    def sources(self, case: Case) -> list[Source]:
        return [Source((rank,), 0, case.count) for rank in case.everyone]

    def factor(self, size: int) -> float:
        return (size - 1) / size

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        return partial(group.all_gather, x, out=out)

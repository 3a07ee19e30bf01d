from __future__ import annotations

from typing import Any

from ..data import Source
from .base import Call, Case, Collective


class Barrier(Collective):
    name = "barrier"
    sized = False

    def sources(self, case: Case) -> list[Source] | None:
        return None

    def call(self, group: Any, x: Any, out: Any, case: Case, op: Any) -> Call:
        barrier: Call = group.barrier
        return barrier

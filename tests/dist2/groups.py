"""Groups for the tests of dist2: a thread for each rank, in worlds that meet in a store of this process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from arraycomm import dist2
from tests.threads import at_once

T = TypeVar("T")
LIMIT = timedelta(seconds=30)


def open_group(store: Any, rank: int, size: int, **named: Any) -> dist2.ProcessGroup:
    group: dist2.ProcessGroup = dist2.new_group("gloo", LIMIT, "cpu", store=store, rank=rank, world_size=size, **named)
    return group


def on_ranks(size: int, work: Callable[[Any], T]) -> list[T]:
    """work(group) on each rank of a new world; what they give, in their order."""
    store = dist2.HashStore()

    def run(rank: int) -> T:
        group = open_group(store, rank, size)
        try:
            result = work(group)
            if not group.closed:
                group.barrier().wait()  # nobody leaves while another one still needs it
            return result
        finally:
            group.shutdown()

    return at_once(size, run)

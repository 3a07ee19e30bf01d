"""Objects for all ranks of a group, or an error on all of them; without a group (pg=None) for this process alone.

What is sent is plain Python data and arrays (objects.py); of an exception the other ranks get type and text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .operations.objects import all_gather_object, broadcast_object_list
from .process_groups.groups import get_world_size
from .process_groups.process_group import ProcessGroup

__all__ = ["SyncPayload", "all_gather", "all_gather_object_enforce_type", "broadcast"]


class SyncPayload:
    """One rank's contribution to a stage: its payload, or its error."""

    exception: BaseException | str | None

    def __init__(self, stage_name: str | None, success: bool, payload: Any,
                 exception: BaseException | str | None = None) -> None:
        self.stage_name, self.success, self.payload, self.exception = stage_name, success, payload, exception

    def _plain(self) -> list[Any]:
        told = self.exception if self.exception is None else f"{type(self.exception).__name__}: {self.exception}"
        return [self.stage_name, self.success, self.payload if self.success else None, told]


def _made(data_or_fn: Any, stage: str | None) -> SyncPayload:
    """The payload: the data, or the function's result or error."""
    if not callable(data_or_fn):
        return SyncPayload(stage, True, data_or_fn)
    try:
        return SyncPayload(stage, True, data_or_fn())
    except Exception as error:
        return SyncPayload(stage, False, None, error)


def broadcast(data_or_fn: Any, *, success: bool = True, stage_name: str | None = None, rank: int = 0,
              pg: ProcessGroup | None = None) -> Any:
    """The data of rank `rank` of the group, or what its function gives there, on all ranks.

    success: False tells all ranks that it has failed; then there is no data. stage_name: for the message.
    Raises RuntimeError on all ranks when the function raises, or when it is told to; AssertionError for data without success.
    """
    if not success and data_or_fn is not None:
        raise AssertionError("data_or_fn must be None when success is False: a failure has no data")
    here = rank == 0 if pg is None else pg.rank() == rank
    mine = _made(data_or_fn, stage_name) if here and success else SyncPayload(stage_name, success, None)
    told = [mine._plain()]
    if pg is not None:
        broadcast_object_list(told, group=pg, group_src=rank)
    _, well, payload, why = told[0]
    if not well:
        at, because = f": stage {stage_name}" if stage_name else "", f": exception {why}" if why else ""
        raise RuntimeError(f"Rank {rank} failed{at}{because}") from (mine.exception if here else None)  # type: ignore[misc]
    return payload


def all_gather(data_or_fn: Any, stage_name: str | None = None, pg: ProcessGroup | None = None) -> list[Any]:
    """Every rank's data, or what its function gives, in rank order on all ranks.

    Raises RuntimeError on all ranks when one of the functions raises, or the ranks are at stages of different names.
    """
    mine = _made(data_or_fn, stage_name)
    everyone = [mine._plain()]
    if pg is not None:
        everyone = [[] for _ in range(get_world_size(pg))]
        all_gather_object(everyone, mine._plain(), group=pg)
    wrong = [f"rank {rank} is at stage {stage!r} and rank 0 at {everyone[0][0]!r}"
             for rank, (stage, *_) in enumerate(everyone) if stage != everyone[0][0]]
    wrong += [f"rank {rank} failed: {why}" for rank, (_, well, _, why) in enumerate(everyone) if not well]
    if wrong:
        raise RuntimeError(f"all_gather at stage {stage_name!r}: {'; '.join(wrong)}") from mine.exception  # type: ignore[misc]
    return [payload for _, _, payload, _ in everyone]


def all_gather_object_enforce_type(pg: ProcessGroup, object_list: list[Any], obj: Any,
                                   type_checker: Callable[[Any, Any], bool] = lambda x, y: type(x) is type(y)) -> None:
    """As all_gather_object(); then TypeError on all ranks when one of the objects does not go with rank 0's."""
    all_gather_object(object_list, obj, group=pg)
    for rank, other in enumerate(object_list[1:], 1):
        if not type_checker(object_list[0], other):
            raise TypeError(f"Object type at index {rank} is {type(other)}, while first object type is {type(object_list[0])}")

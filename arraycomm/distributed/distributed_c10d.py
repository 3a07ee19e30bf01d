"""Every name of arraycomm.distributed, for programs that import them from torch.distributed.distributed_c10d."""

from __future__ import annotations

import warnings
from datetime import timedelta

from . import *  # noqa: F403
from .operations.coalesce import CoalescingManager as _CoalescingManager  # noqa: F401
from .operations.coalesce import _coalescing_manager  # noqa: F401

# Private names that programs import from there, older spellings included.
from .operations.collectives import all_gather_into_tensor as _all_gather_base  # noqa: F401
from .operations.collectives import reduce_scatter_tensor as _reduce_scatter_base  # noqa: F401
from .process_groups.groups import get_global_rank
from .process_groups.groups import get_world_size as _get_group_size  # noqa: F401
from .process_groups.options import AllgatherOptions  # noqa: F401
from .process_groups.process_group import ProcessGroup
from .process_groups.subgroups import SHRINK_ABORT, SHRINK_DEFAULT  # noqa: F401
from .process_groups.world import default_group as _get_default_group
from .process_groups.world import is_outside as _rank_not_in_group  # noqa: F401
from .process_groups.world import resolve as _group_or_default_group
from .process_groups.world import state


def _get_default_store() -> Store:  # noqa: F405
    """The world's store, in which its ranks can meet. Raises ValueError outside a world."""
    return _get_default_group().get_group_store()


def _get_global_rank(group: ProcessGroup, rank: int) -> int:
    warnings.warn("`torch.distributed.distributed_c10d._get_global_rank` is deprecated, please use "
                  "`torch.distributed.distributed_c10d.get_global_rank` instead", FutureWarning, stacklevel=2)
    return get_global_rank(group, rank)


def _get_process_group_name(pg: ProcessGroup) -> str:
    return pg.group_name


def _resolve_process_group(group_name: str) -> ProcessGroup:
    """The open group of this name. Raises ValueError where there is none."""
    if group_name not in state.groups:
        raise ValueError(f"no group is named {group_name!r}; open are {', '.join(map(repr, state.groups)) or 'none'}")
    return state.groups[group_name]


def _set_pg_timeout(timeout: timedelta, group: ProcessGroup | None = None) -> None:
    """As the group's set_timeout(). Raises ValueError outside of the group."""
    _group_or_default_group(group).set_timeout(timeout)

"""How torch.distributed's groups are opened: the world through torch's store, later groups over the world's connections."""

from __future__ import annotations

import warnings
from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed

from arraycomm.core.bootstrap.rendezvous import Rendezvous, rendezvous
from arraycomm.core.group.arguments import group_seconds
from arraycomm.core.group.group import Group
from arraycomm.core.group.start import open_group
from arraycomm.core.interface import registry
from arraycomm.distributed.process_groups.backend import BackendConfig
from arraycomm.distributed.process_groups.process_group import ProcessGroup as FacadeGroup

from . import functional
from .process_group import ProcessGroup
from .store import BorrowedStore


def create(options: Any, pg_options: Any) -> Any:
    """What register_backend() was given: called on each member of a new group, as torch's _DistributedBackendOptions say."""
    kind = pg_options if isinstance(pg_options, type) else ProcessGroup  # as_gloo.py gives its own
    if pg_options is not None and kind is ProcessGroup:
        warnings.warn("backend 'arraycomm' has no options of its own: pg_options is ignored", stacklevel=4)
    functional.register()
    world = torch.distributed.group.WORLD
    if isinstance(world, ProcessGroup):
        core, meeting = _part(world, options), world.facade.meeting
    else:
        core, meeting = _world(options.store, options.group_rank, options.group_size, options.timeout)
    ranks = options.global_ranks_in_group or range(options.group_size)
    group = FacadeGroup.of(core, ranks, name=options.group_id, desc=None, backend="arraycomm",
                        config=BackendConfig("cpu:gloo"), meeting=meeting)
    return kind(group, options.store)


def _world(store: Any, rank: int, size: int, timeout: timedelta) -> tuple[Group, Rendezvous]:
    meeting = rendezvous(store=BorrowedStore(store, timeout), rank=rank, world_size=size, timeout=timeout)
    return open_group(meeting, registry.choose("socket"), group_seconds(timeout.total_seconds()), "torch"), meeting


def _part(world: ProcessGroup, options: Any) -> Group:
    """torch may use a name again once its group is destroyed, the core does not: the name's uses are counted, by its members."""
    members = tuple(options.global_ranks_in_group)
    uses: Counter[tuple[Any, ...]] = world.uses
    uses[options.group_id, members] += 1
    name = f"{options.group_id}#{uses[options.group_id, members]}"
    return world.facade.core.subgroup(members, name, timeout=options.timeout.total_seconds())

"""Several groups at once: new_subgroups(), split_group(), and a group without some of its ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from arraycomm.core.base.errors import counted_in
from arraycomm.core.group.group import Group

from ..operations.methods import untimed
from . import backend as backends
from .backend import BackendConfig
from .groups import _next_turn, agree, new_group
from .process_group import ProcessGroup, _announce_ignored, check_rank, check_ranks, open_part, seconds_of, shares
from .world import GroupMember, default_group, is_outside, resolve, state

SHRINK_DEFAULT = 0
SHRINK_ABORT = 1


def new_subgroups(group_size: int | None = None, group: Any = None, timeout: timedelta | None = None,
                  backend: str | None = None, pg_options: Any = None,
                  group_desc: str | None = None) -> tuple[ProcessGroup | None, list[Any]]:
    """Splits `group` into groups of `group_size` neighbouring ranks. Gives this rank's group and the list of all.

    Every rank of the world calls it; for a smaller `group` every rank of that, and other ranks get (None, []). The list has
    NON_GROUP_MEMBER in place of groups without this rank.

    Args:
        group_size: None takes LOCAL_WORLD_SIZE, which launchers set, or else the number of CUDA devices: one group a host.
        timeout: as of new_group(), like the other parameters.

    - Blocks: until every rank that has to call it has come.
    - Timeout: DistStoreError names the ranks that did not come.
    - Errors: ValueError when the group's size is no multiple of group_size. The others are those of new_group().

    Examples:
        On each of two ranks:

        >>> mine, groups = dist.new_subgroups(1)
        >>> mine.ranks == (dist.get_rank(),), len(groups)
        (True, 2)
    """
    if is_outside(group):
        return None, []
    members = list(resolve(group).ranks)
    each = _ranks_of_a_host() if group_size is None else group_size
    if each <= 0:
        raise ValueError(f"The arg 'group_size' ({each}) must be positive")
    if each > len(members):
        raise ValueError(f"The arg 'group_size' ({each}) must not exceed the world size ({len(members)})")
    if len(members) % each:
        raise ValueError(f"The world size ({len(members)}) must be divisible by 'group_size={each}'")
    lists = [members[start:start + each] for start in range(0, len(members), each)]
    return _several(lists, timeout, backend, pg_options, group_desc, alone=len(members) < default_group().size())


def _ranks_of_a_host() -> int:
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    if told.isdecimal():
        return int(told)
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available():
        return int(cuda.device_count())
    raise ValueError("new_subgroups() cannot tell how many ranks a host has: LOCAL_WORLD_SIZE is not set and there is no "
                     "CUDA device; pass group_size")


def new_subgroups_by_enumeration(ranks_per_subgroup_list: Sequence[Sequence[int]], timeout: timedelta | None = None,
                                 backend: str | None = None, pg_options: Any = None,
                                 group_desc: str | None = None) -> tuple[ProcessGroup | None, list[Any]]:
    """A group for each of these lists of global ranks. Gives this rank's group (None outside of all) and the list of all.

    Every rank of the world calls it, with the same lists. The other parameters are those of new_group().

    - Blocks: until every rank has called it.
    - Timeout: DistStoreError names the ranks that did not come.
    - Errors: ValueError when a rank stands in two lists. The others are those of new_group().

    Examples:
        On each of two ranks:

        >>> mine, groups = dist.new_subgroups_by_enumeration([[0], [1]])
        >>> mine.rank()
        0
    """
    if not ranks_per_subgroup_list:
        raise ValueError("The arg 'ranks_per_subgroup_list' cannot be empty")
    seen: dict[int, Sequence[int]] = {}
    for ranks in ranks_per_subgroup_list:
        for rank in ranks:
            if rank in seen:
                raise ValueError(f"Rank {rank} has appeared in both subgroup {seen[rank]} and {ranks}")
            seen[rank] = ranks
    return _several(ranks_per_subgroup_list, timeout, backend, pg_options, group_desc, alone=False)


def _several(lists: Sequence[Sequence[int]], timeout: timedelta | None, backend: str | None, pg_options: Any, desc: str | None, *,
             alone: bool) -> tuple[ProcessGroup | None, list[Any]]:
    """This rank's group, and all groups. alone: the members of each group make it without the other ranks of the world."""
    made = [new_group(ranks, timeout, backend, pg_options, alone, desc) for ranks in lists]
    groups = [GroupMember.NON_GROUP_MEMBER if group is None else group for group in made]
    return next((group for group in groups if isinstance(group, ProcessGroup)), None), groups


def split_group(parent_pg: Any = None, split_ranks: Sequence[Sequence[int]] | None = None,
                timeout: timedelta | None = None, pg_options: Any = None, group_desc: str | None = None,
                backend: str | None = None) -> ProcessGroup | None:
    """Splits parent_pg (None: the default group) into lists of its ranks. Gives the group with this rank, None outside of all.

    Every rank of the parent calls it with the same lists, which do not overlap. The order in a list is the order of the new
    ranks.

    Args:
        timeout: a timedelta, the default of the group's operations; None: 30 minutes, with backend "nccl" 10.
        backend: some of the parent's device:backend pairs; None: all.

    - Blocks: until every rank of the parent has called it.
    - Timeout: DistStoreError names the ranks that did not come.
    - Errors: ValueError for lists that are empty or overlap, ranks and backends that the parent does not have, and when ranks ask
      for
      different groups. The others are those of new_group().

    Examples:
        On each of two ranks:

        >>> group = dist.split_group(None, [[1, 0]])
        >>> group.rank() == 1 - dist.get_rank()
        True
    """
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    parent = resolve(parent_pg)
    lists = _checked_split(split_ranks, parent.size())
    config = _part_of(parent, backend)
    seconds = seconds_of(timeout, parent.backend)
    agree(parent, f"split_group into {lists} over {config}", seconds)
    parent._splits += 1
    number = next((number for number, ranks in enumerate(lists) if parent.rank() in ranks), None)
    if number is None:
        return None
    return _open(parent, [parent.ranks[rank] for rank in lists[number]], config, seconds, pg_options, group_desc,
                 f"{parent.group_name}:split:{parent._splits - 1}.{number}")


def _checked_split(split_ranks: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    lists = [[check_rank(rank, size) for rank in ranks] for ranks in split_ranks]
    flat = [rank for ranks in lists for rank in ranks]
    if not all(lists):
        raise ValueError(f"split_ranks has an empty list: {lists}")
    if len(set(flat)) != len(flat):
        twice = sorted({rank for rank in flat if flat.count(rank) > 1})
        raise ValueError(f"the lists of split_ranks must not overlap: {twice} appear more than once in {lists}")
    return lists


def _part_of(parent: ProcessGroup, backend: str | None) -> BackendConfig:
    if backend is None:
        return parent._config
    wanted, there = BackendConfig(backend), parent._config.device_backend_map
    for device, name in wanted.device_backend_map.items():
        if there.get(device) != name:
            raise ValueError(f"split_group: group {parent.group_name!r} has no {device}:{name}, it has {parent._config}")
    return wanted


def _open(parent: ProcessGroup, members: Sequence[int], config: BackendConfig, seconds: float, pg_options: Any,
          desc: str | None, name: str) -> ProcessGroup:
    world = default_group()
    with counted_in([world.core.ranks[rank] for rank in parent.ranks], parent.core.name):
        core = open_part(members, _next_turn(members), config, seconds, pg_options)
    made = ProcessGroup._of(core, members, name=name, desc=desc, backend=str(config) if parent._config is not config else
                        parent.backend, config=config, meeting=world._meeting, bound_device_id=parent.bound_device_id)
    state.groups[name] = made
    return made


def shrink_group(ranks_to_exclude: list[int], group: Any = None, shrink_flags: int = SHRINK_DEFAULT,
                 pg_options: Any = None) -> ProcessGroup:
    """A group without some of its ranks. Every rank that stays calls it, also after PeerLost; it takes the old group's place.

    The old group is not to be used any more. The result for the default group (None) is the new default group, whose ranks are
    counted anew; all other groups are closed.

    Args:
        ranks_to_exclude: a list of ranks of the group.
        shrink_flags: 1 (SHRINK_ABORT) ends operations in progress in the old group first; 0 does not.
        pg_options: for backends that take options.

    - Blocks: until every rank that stays has called it.
    - Errors: TypeError when ranks_to_exclude is no list of ints. ValueError for ranks that the group does not have or that come
      twice, for none and for all of them. RuntimeError on a rank that is to be excluded. CollectiveTimeout, after the group's
      timeout, names the ranks that have not come.

    Examples:
        On each of two ranks:

        >>> dist.shrink_group([])
        Traceback (most recent call last):
        ValueError: ranks_to_exclude cannot be empty: name at least one rank to exclude
    """
    if not isinstance(ranks_to_exclude, list):
        raise TypeError(f"ranks_to_exclude must be a list, but got {type(ranks_to_exclude).__name__}. Example: [1, 3, 5] to "
                        "exclude ranks 1, 3, and 5.")
    if shrink_flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        raise ValueError(f"Invalid shrink_flags value: {shrink_flags}. Must be one of: SHRINK_DEFAULT (0) or SHRINK_ABORT (1)")
    old = resolve(group)
    remaining = _remaining(old, ranks_to_exclude)
    for name in old._config._names():
        backends.check(name)
    if shrink_flags == SHRINK_ABORT:
        old.abort()
    if shares(default_group(), old._config, pg_options):
        _announce_ignored(old._config, pg_options)
        core = untimed(old.core).shrink(exclude=[rank for rank in range(old.size()) if rank not in remaining],
                                        timeout=old.core.timeout)
        remaining = [old.core.ranks.index(rank) for rank in core.ranks]
    else:
        core = _of_its_own(old, remaining, pg_options)
    return _replaced(old, core, remaining)


def _remaining(old: ProcessGroup, excluded: list[int]) -> list[int]:
    if old.size() < 2:
        raise ValueError("Cannot shrink a process group with size 1. Group must have at least 2 ranks to support shrinking.")
    if not excluded:
        raise ValueError("ranks_to_exclude cannot be empty: name at least one rank to exclude")
    gone = check_ranks(excluded, old.size())
    if len(gone) == old.size():
        raise ValueError(f"ranks_to_exclude names all {old.size()} ranks: at least one must remain")
    if old.rank() in gone:
        raise RuntimeError(f"rank {old.rank()} is in ranks_to_exclude: only the remaining ranks call shrink_group()")
    return [rank for rank in range(old.size()) if rank not in gone]


def _of_its_own(old: ProcessGroup, remaining: Sequence[int], pg_options: Any) -> Group:
    """A core group of the remaining ranks that shares nothing with the old group."""
    world, members = default_group(), [old.ranks[rank] for rank in remaining]
    with counted_in([world.core.ranks[rank] for rank in old.ranks], old.core.name):
        core = open_part(members, _next_turn(members), old._config, old.core.timeout, pg_options)
        try:
            core.barrier()  # if another rank has died, all ranks keep the old group and can retry from it
        except BaseException as error:
            core.close(type(error).__name__)
            raise
    return core


def _replaced(old: ProcessGroup, core: Group, remaining: Sequence[int]) -> ProcessGroup:
    """The handle of a core group of the remaining ranks, registered in the old group's place."""
    if old is state.default:
        ranks = list(range(len(remaining)))
        for other in state.groups.values():
            if other is not old:
                other.shutdown()
        shrunk, count = [*state.shrunk, old], state.count
        state.clear()
        state.shrunk, state.count = shrunk, count
        meeting = old._meeting.part(remaining, f"shrunk/{old.core.name}/{len(shrunk)}")
        name = state.next_name()
    else:
        ranks, meeting = [old.ranks[rank] for rank in remaining], old._meeting
        del state.groups[old.group_name]
        name = f"{old.group_name}:shrunk"
    made = state.groups[name] = ProcessGroup._of(core, ranks, name=name, desc=old.group_desc, backend=old.backend,
                                                config=old._config, meeting=meeting, bound_device_id=old.bound_device_id)
    state.default = state.default or made
    if core.timeout != old.core.timeout:
        made.set_timeout(timedelta(seconds=old.core.timeout))
    return made

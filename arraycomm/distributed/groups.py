"""Groups of some of the ranks, and the translation between ranks of a group and of the world."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from arraycomm.core.gathering import MEET, Gathering
from arraycomm.core.store import PrefixStore

from . import backend as backends
from .backend import Backend, BackendConfig
from .process_group import ProcessGroup, open_part, seconds_of
from .world import GroupMember, default_group, is_outside, resolve, state

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ProcessGroup", "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size",
           "new_group"]


def get_rank(group: Any = None) -> int:
    """This process's rank in the group; -1 outside of it. ValueError before init_process_group()."""
    if group is not None and is_outside(group):
        return -1
    return resolve(group).rank()


def get_world_size(group: Any = None) -> int:
    """The group's number of ranks; -1 outside of it. ValueError before init_process_group()."""
    if group is not None and is_outside(group):
        return -1
    return resolve(group).size()


def get_group_rank(group: Any, global_rank: int) -> int:
    """The rank in `group` of a global rank. ValueError when it is not part of it."""
    ranks = resolve(group).ranks
    if global_rank not in ranks:
        raise ValueError(f"Global rank {global_rank} is not part of group {group}, which has {list(ranks)}")
    return ranks.index(global_rank)


def get_global_rank(group: Any, group_rank: int) -> int:
    """The global rank of a rank of `group`. ValueError when it has no such rank."""
    ranks = resolve(group).ranks
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"Group rank {group_rank} is not part of group {group}, which has ranks 0 to {len(ranks) - 1}")
    return ranks[group_rank]


def get_process_group_ranks(group: Any) -> list[int]:
    """The group's global ranks, in group order; None: of the default group.

    For NON_GROUP_MEMBER the members of the last group that this rank did not become one of.
    """
    if is_outside(group):
        return list(state.outside)
    return list(resolve(group).ranks)


def new_group(ranks: Sequence[int] | None = None, timeout: timedelta | None = None, backend: str | None = None,
              pg_options: Any = None, use_local_synchronization: bool = False, group_desc: str | None = None,
              device_id: Any = None, sort_ranks: bool = True) -> Any:
    """A group of these global ranks (None: all). Every rank of the world calls it, in the same order, members or not.

    timeout: the default of its operations; None: 30 minutes. backend: None takes the default group's.
    use_local_synchronization: only the members call it. sort_ranks: False keeps the order given, equal on all members.
    Gives GroupMember.NON_GROUP_MEMBER to a rank outside. Raises ValueError for ranks that are not in the world or come
    twice, and when not all ranks ask for the same; TypeError for a timeout that is no timedelta.
    """
    world = default_group()
    members = _members(ranks, world.size(), sort_ranks)
    seconds = seconds_of(timeout)
    asked = world.backend if backend is None else Backend(backend)
    config = BackendConfig(asked)
    for name in config.device_backend_map.values():
        backends.check(name)
    inside = world.rank() in members
    if use_local_synchronization:
        if asked == Backend.MPI:
            raise ValueError("MPI backend does not support use_local_synchronization: every rank has to call new_group()")
        if not inside:
            return GroupMember.NON_GROUP_MEMBER
    else:
        _agree(f"ranks {members}, backend {asked}", seconds)
    return _make(members, asked, config, seconds, pg_options, group_desc, device_id, counted=not use_local_synchronization)


def _members(ranks: Sequence[int] | None, size: int, sort: bool) -> list[int]:
    if ranks is None:
        return list(range(size))
    members = [int(rank) for rank in ranks]
    if not members:
        raise ValueError("a group needs at least one rank, got an empty list")
    if len(members) > size:
        raise ValueError("the new group's world size should be less or equal to the world size set by "
                         f"init_process_group: {len(members)} ranks of {size}")
    for rank in members:
        if not 0 <= rank < size:
            raise ValueError(f"Rank {rank} is out of range. Valid ranks are 0 to {size - 1} (world_size={size})")
    if len(set(members)) != len(members):
        raise ValueError(f"ranks list must not contain duplicate entries, got {members}")
    return sorted(members) if sort else members


def _make(members: Sequence[int], asked: str, config: BackendConfig, seconds: float, pg_options: Any, desc: str | None,
          device_id: Any, *, counted: bool) -> Any:
    world, meeting = default_group(), state.meeting
    assert meeting is not None  # set with the default group
    key = (tuple(members), str(config))
    turn = state.made[key]
    state.made[key] += 1
    name = state.next_name() if counted else f"{','.join(map(str, members))}#{turn}"
    if world.rank() not in members:
        state.outside = tuple(members)
        return GroupMember.NON_GROUP_MEMBER
    cores = open_part(world, meeting, members, turn, config, seconds, pg_options)
    group = ProcessGroup(cores, members, name=name, desc=desc or "undefined", backend=asked, config=config,
                         bound_device_id=device_id)
    state.groups[name] = group
    return group


def _agree(what: str, seconds: float) -> None:
    """Waits for all ranks; ValueError when they ask for different groups.

    Over the store, because collectives of the default group may be under way.
    """
    meeting = state.meeting
    assert meeting is not None  # set with the default group
    if meeting.size == 1:
        return
    store = PrefixStore(f"new_group/{state.agreements}", meeting.store)
    state.agreements += 1
    gathering = Gathering(store, meeting.rank, meeting.size)
    gathering.enter()
    try:
        told = store.compare_set("what", "", what).decode()
        if told != what:
            raise ValueError(f"the ranks ask new_group() for different groups: this is rank {meeting.rank} with {what}, "
                             f"another one came with {told}")
        gathering.wait(MEET, seconds)
    except BaseException as error:
        gathering.fail(error)
        raise
    gathering.leave()

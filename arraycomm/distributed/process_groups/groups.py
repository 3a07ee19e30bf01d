"""Groups of some of the ranks, and the translation between ranks of a group and of the world."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from arraycomm.core.base.printable import printable
from arraycomm.core.bootstrap.gathering import MEET, Gathering, TooLate, agreed
from arraycomm.core.bootstrap.store import PrefixStore

from . import backend as backends
from . import devices
from .backend import Backend, BackendConfig
from .process_group import ProcessGroup, check_ranks, open_part, seconds_of
from .world import GroupMember, default_group, is_outside, resolve, state

__all__ = ["GroupName", "ProcessGroup", "get_backend", "get_backend_config", "get_global_rank", "get_group_rank", "get_pg_count",
           "get_process_group_ranks", "get_rank", "get_world_size", "new_group"]


def GroupName(x: str) -> str:  # noqa: N802 - torch's name
    """The name itself. It stands for torch's type of groups' names, which are str.

    - Blocks: never; nothing is sent.
    - Errors: none; any value is returned.

    Examples:
        >>> dist.GroupName("trainers")
        'trainers'
    """
    return x


def get_rank(group: Any = None) -> int:
    """This process's rank in the group; -1 outside of it.

    - Blocks: never; nothing is sent.
    - Errors: ValueError before init_process_group() and for a closed group.

    Examples:
        On each of two ranks:

        >>> dist.get_rank() in (0, 1)
        True
    """
    return -1 if is_outside(group) else _open(group).rank()


def get_world_size(group: Any = None) -> int:
    """The group's number of ranks; -1 outside of it.

    - Blocks: never; nothing is sent.
    - Errors: ValueError before init_process_group() and for a closed group.

    Examples:
        On each of two ranks:

        >>> dist.get_world_size()
        2
    """
    return -1 if is_outside(group) else _open(group).size()


def get_group_rank(group: Any, global_rank: int) -> int:
    """The rank in `group` of a global rank.

    - Blocks: never; nothing is sent.
    - Errors: ValueError when the global rank is not part of the group.

    Examples:
        On each of two ranks:

        >>> dist.get_group_rank(dist.group.WORLD, 1)
        1
    """
    found = _open(group)
    if global_rank not in found._place:
        raise ValueError(f"Global rank {global_rank} is not part of group {found}, which has {list(found.ranks)}")
    return found._place[global_rank]


def get_global_rank(group: Any, group_rank: int) -> int:
    """The global rank of a rank of `group`.

    - Blocks: never; nothing is sent.
    - Errors: ValueError when the group has no such rank.

    Examples:
        On each of two ranks:

        >>> dist.get_global_rank(dist.group.WORLD, 1)
        1
    """
    found = _open(group)
    if not isinstance(group_rank, int) or not 0 <= group_rank < len(found.ranks):
        raise ValueError(f"Group rank {group_rank} is not part of group {found}, which has ranks 0 to "
                         f"{len(found.ranks) - 1}")
    return found.ranks[group_rank]


def get_process_group_ranks(group: Any) -> list[int]:
    """The group's global ranks, in group order; None: of the default group.

    For GroupMember.NON_GROUP_MEMBER: the members of the last new group that this rank is not part of.

    - Blocks: never; nothing is sent.
    - Errors: ValueError for NON_GROUP_MEMBER before any such group, and for a closed group.

    Examples:
        On each of two ranks:

        >>> dist.get_process_group_ranks(None)
        [0, 1]
    """
    if is_outside(group):
        if not state.outside:
            raise ValueError("GroupMember.NON_GROUP_MEMBER stands for no group yet: new_group() has not excluded this rank")
        return list(state.outside)
    return list(_open(group).ranks)


def get_backend(group: Any = None) -> str:
    """The backend that was asked for when the group was made, in lower case. "undefined" stands for None.

    - Blocks: never; nothing is sent.
    - Errors: ValueError outside of the group.

    Examples:
        On each of two ranks:

        >>> dist.get_backend()
        'undefined'
    """
    return _open(group).backend


def get_backend_config(group: Any = None) -> str:
    """The backend of each device type, for example "cpu:gloo,cuda:nccl".

    - Blocks: never; nothing is sent.
    - Errors: ValueError outside of the group.

    Examples:
        On each of two ranks:

        >>> "cpu:gloo" in dist.get_backend_config()
        True
    """
    return str(_open(group)._config)


def get_pg_count() -> int:
    """How many groups all ranks have made together so far, closed ones included; 0 after destroy_process_group().

    - Blocks: never; nothing is sent.
    - Errors: none; it has no arguments.

    Examples:
        On each of two ranks:

        >>> dist.get_pg_count() >= 1
        True
    """
    return state.count


def _open(group: Any) -> ProcessGroup:
    """As resolve(), and ValueError for a group that is closed."""
    found = resolve(group)
    if found.closed:
        raise ValueError(f"Group {found!r} is not registered: it is closed; create another with new_group()")
    return found


def new_group(ranks: Sequence[int] | None = None, timeout: timedelta | None = None, backend: str | None = None,
              pg_options: Any = None, use_local_synchronization: bool = False, group_desc: str | None = None,
              device_id: Any = None, sort_ranks: bool = True) -> Any:
    """A group of these global ranks (None: all). Every rank of the world calls it in the same order, members or not.

    Ranks outside get GroupMember.NON_GROUP_MEMBER, and with use_local_synchronization None.

    Args:
        timeout: a timedelta, the default of the group's operations. None: 30 minutes, with backend "nccl" 10.
        backend: None takes the default group's.
        pg_options: for "nccl", and for a backend that a program registered in the extended form.
        use_local_synchronization: True: only the members call it.
        device_id: the accelerator that this process works on, kept as bound_device_id; None takes the default group's.
        sort_ranks: False keeps the order of `ranks`, which is then equal on all members.

    - Blocks: until every rank that has to call it has come.
    - Timeout: DistStoreError names the ranks that did not come.
    - Errors: ValueError for ranks that are not in the world or come twice, and when ranks ask for different groups. TypeError for
      a
      timeout that is no timedelta. PeerLost when a rank fails meanwhile. For the backend as init_process_group().

    Examples:
        On each of two ranks:

        >>> group = dist.new_group([1])
        >>> group is dist.GroupMember.NON_GROUP_MEMBER or group.size() == 1
        True
    """
    world = default_group()
    members = _members(ranks, world.size(), sort_ranks)
    asked = world.backend if backend is None else Backend(backend)
    seconds, device = seconds_of(timeout, asked), devices.bound(device_id) or world.bound_device_id
    config = BackendConfig(asked)
    for name in config._names():
        backends.check(name)
    if use_local_synchronization:
        if asked == Backend.MPI:
            raise ValueError("MPI backend does not support use_local_synchronization: every rank has to call new_group()")
        if world.rank() not in members:
            return None  # as in torch; where all ranks call it, ranks outside get NON_GROUP_MEMBER
    else:
        agree(world, f"new_group of {members} over {config._spelled()}", seconds)
    turn = _next_turn(members)
    name = f"{','.join(map(str, members))}#{turn}" if use_local_synchronization else state.next_name()
    if world.rank() in members:
        core = open_part(members, turn, config, seconds, pg_options)
        group: Any = ProcessGroup._of(core, members, name=name, desc=group_desc, backend=asked, config=config,
                                  meeting=world._meeting, bound_device_id=device)
        state.groups[name] = group
    else:
        state.outside, group = tuple(members), GroupMember.NON_GROUP_MEMBER
    if not use_local_synchronization and os.environ.get("TORCH_DIST_INIT_BARRIER") == "1":
        agree(world, f"end of new_group {name}", seconds)
    return group


def _members(ranks: Sequence[int] | None, size: int, sort: bool) -> list[int]:
    if ranks is None:
        return list(range(size))
    members = list(ranks)
    if len(members) > size:
        raise ValueError("the new group's world size should be less or equal to the world size set by "
                         f"init_process_group: {len(members)} ranks of {size}")
    checked = check_ranks(members, size)
    return sorted(checked) if sort else checked


def _next_turn(members: Sequence[int]) -> int:
    turn = state.made[tuple(members)]
    state.made[tuple(members)] += 1
    return turn


def agree(group: ProcessGroup, what: str, seconds: float) -> None:
    """Waits for all ranks of the group. ValueError if their call signatures differ.

    The exchange uses the store, because collectives of the group may be in progress.
    """
    end = time.monotonic() + seconds
    while group.size() > 1:
        number = group._agreements
        group._agreements += 1
        try:
            return _agree(group, number, what, max(end - time.monotonic(), 0.001))
        except TooLate:  # the peers' next attempt has the next number
            if time.monotonic() >= end:
                raise


def _agree(group: ProcessGroup, number: int, what: str, seconds: float) -> None:
    store = _agreement(group, number)
    gathering = Gathering(store, group.rank(), group.size(), group._meeting.secret, group.core.ranks)
    gathering.enter()
    try:
        about = f"what the ranks of group {group.group_name!r} ask for"
        told = printable(agreed(store, "what", gathering.secret, f"{about}, number {number}", what.encode()))
        if told != what:
            raise ValueError(f"the ranks of group {group.group_name!r} do not ask for the same: rank {group.rank()} calls "
                             f"{what}, another one {told}")
        gathering.wait(MEET, seconds, f"every rank of group {group.group_name!r} has to call {what}",
                       group.core.check_peers)
    except BaseException as error:
        gathering.fail(error)
        raise
    gathering.leave()
    if group.rank() == 0 and number > 0 and group._meeting.store._lists_keys:  # all ranks have left the previous one
        before = _agreement(group, number - 1)
        before.delete_key("what")
        Gathering(before, 0, group.size()).forget(MEET)


def _agreement(group: ProcessGroup, number: int) -> PrefixStore:
    return PrefixStore(f"agree/{group.core.name}/{number}", group._meeting.store)

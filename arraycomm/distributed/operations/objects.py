"""Collectives and messages of Python objects.

Plain data and arrays (core/arrays/codec.py) travel without pickle, whose reading can run code. ARRAYCOMM_ALLOW_PICKLE=1
on all ranks pickles everything, as torch does. `device` is accepted and not used: objects arrive in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arraycomm.core.base.settings import get_flag

from ..process_groups.process_group import ProcessGroup
from ..process_groups.world import resolve
from .arguments import of_root, other, peer, wrong_type
from .entry import operation


def _pickle() -> bool:
    return get_flag("ARRAYCOMM_ALLOW_PICKLE")


def _list(name: str, value: object, size: int | None = None) -> None:
    if not isinstance(value, list):
        raise wrong_type(name, "list", value)
    if size is not None and len(value) != size:
        raise RuntimeError(f"`{name}` has {len(value)} entries, must be the size of the group, {size}")


@operation()
def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Every rank's object, in rank order, in the list, which has one entry for each rank.

    Plain data and arrays are sent without pickle. ARRAYCOMM_ALLOW_PICKLE=1 on all ranks pickles everything, as torch does.

    - Blocks: until every rank of the group has called it.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.

    Examples:
        On each of two ranks:

        >>> found = [None, None]
        >>> dist.all_gather_object(found, {"rank": dist.get_rank()})
        >>> found
        [{'rank': 0}, {'rank': 1}]
    """
    _list("object_list", object_list, group.size())
    object_list[:] = group.core.all_gather_object(obj, allow_pickle=_pickle())


@operation()
def gather_object(obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None,
                  group: Any = None, group_dst: int | None = None) -> None:
    """Every rank's object, in rank order, in the list of rank dst. dst is 0 by default, and only that rank passes a list.

    - Blocks: until every rank of the group has called it.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.

    Examples:
        On each of two ranks:

        >>> found = [None, None] if dist.get_rank() == 0 else None
        >>> dist.gather_object("ab"[dist.get_rank()], found)
        >>> found in (None, ["a", "b"])
        True
    """
    root = peer(group, 0 if dst is None and group_dst is None else dst, group_dst)
    into = of_root("gather_list", object_gather_list, group.rank() == root, "destination")
    if group.rank() == root:
        _list("object_gather_list", into, group.size())
    found = group.core.gather_object(obj, root, allow_pickle=_pickle())
    if found is not None:
        into[:] = found


@operation()
def broadcast_object_list(object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
                          group_src: int | None = None) -> None:
    """Copies the objects of rank src's list into the lists of all other ranks. src is 0 by default; the lists are equally long.

    Args:
        device: accepted and not used; objects arrive in host memory.

    - Blocks: until every rank of the group has called it.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.

    Examples:
        On each of two ranks:

        >>> found = [{"rate": 0.5}, "text"] if dist.get_rank() == 0 else [None, None]
        >>> dist.broadcast_object_list(found, src=0)
        >>> found
        [{'rate': 0.5}, 'text']
    """
    _list("object_list", object_list)
    if not object_list:
        raise ValueError("broadcast_object_list needs a list of at least one object, the same number on all ranks")
    root = peer(group, 0 if src is None and group_src is None else src, group_src)
    _fill("object_list", object_list, group.core.broadcast_object(object_list, root, allow_pickle=_pickle()), root)


@operation()
def scatter_object_list(scatter_object_output_list: list[Any], scatter_object_input_list: Sequence[Any] | None = None,
                        src: int | None = None, group: Any = None, group_src: int | None = None) -> None:
    """Copies entry r of rank src's input list into the first entry of rank r's output list. src is 0 by default.

    - Blocks: until every rank of the group has called it.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.

    Examples:
        On each of two ranks:

        >>> found = [None]
        >>> dist.scatter_object_list(found, ["a", "b"] if dist.get_rank() == 0 else None)
        >>> found == ["ab"[dist.get_rank()]]
        True
    """
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    root = peer(group, 0 if src is None and group_src is None else src, group_src)
    if group.rank() == root:
        if scatter_object_input_list is None:
            raise ValueError("source rank must provide non-None scatter_object_input_list")
        if len(scatter_object_input_list) != group.size():
            raise RuntimeError(f"`scatter_object_input_list` has {len(scatter_object_input_list)} entries, must be the size of "
                               f"the group, {group.size()}")
    scatter_object_output_list[0] = group.core.scatter_objects(scatter_object_input_list, root, allow_pickle=_pickle())


def send_object_list(object_list: list[Any], dst: int | None = None, group: ProcessGroup | None = None, device: Any = None,
                     group_dst: int | None = None, use_batch: bool = False) -> None:
    """Sends the list's objects to another rank, which calls recv_object_list() with a list of the same length.

    Args:
        device: accepted and not used, as use_batch.

    - Blocks: until the objects have been copied or received; long ones wait for the receiver.
    - Timeout: the group's. CollectiveTimeout, and the group cannot be used any more.
    - Errors: TypeError for an object that cannot be sent, ValueError for dst and an empty list. Then PeerLost, Aborted.

    Examples:
        On each of two ranks:

        >>> found = [None, None]
        >>> if dist.get_rank() == 0:
        ...     dist.send_object_list([1, "two"], dst=1)
        ... else:
        ...     sender = dist.recv_object_list(found, src=0)
        >>> found == ([None, None] if dist.get_rank() == 0 else [1, "two"])
        True
    """
    pg = resolve(group)
    to = other(pg, peer(pg, dst, group_dst))
    _list("object_list", object_list)
    if not object_list:
        raise ValueError("send_object_list needs a list of at least one object")
    pg.core.send_object(object_list, to, allow_pickle=_pickle())


def recv_object_list(object_list: list[Any], src: int | None = None, group: ProcessGroup | None = None, device: Any = None,
                     group_src: int | None = None, use_batch: bool = False) -> int:
    """Receives objects into the list and gives the sender's global rank. Without src and group_src: from any rank.

    Args:
        device: accepted and not used, as use_batch.

    - Blocks: until the objects have arrived.
    - Timeout: the group's. CollectiveTimeout, and the group cannot be used any more.
    - Errors: TypeError, ValueError for the arguments, RuntimeError for a list of another length. Then PeerLost, Aborted.

    Examples:
        On each of two ranks:

        >>> found = [None]
        >>> if dist.get_rank() == 1:
        ...     dist.send_object_list(["hello"], dst=0)
        ... else:
        ...     assert dist.recv_object_list(found) == 1
        >>> found == (["hello"] if dist.get_rank() == 0 else [None])
        True
    """
    pg = resolve(group)
    _list("object_list", object_list)
    source = None if src is None and group_src is None else peer(pg, src, group_src)
    found, sender = pg.core.recv_object(source, allow_pickle=_pickle())
    _fill("object_list", object_list, found, sender)
    return int(pg.ranks[sender])


def _fill(name: str, into: list[Any], found: list[Any], sender: int) -> None:
    if len(found) != len(into):
        raise RuntimeError(f"`{name}` has {len(into)} entries, but rank {sender} of the group sent {len(found)} objects")
    into[:] = found

"""Opening torch.distributed's groups: the world by a rendezvous over torch's store, later groups over the world's connections.
torch owns the store, which is not closed here."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed

from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.bootstrap.rendezvous import Rendezvous, rendezvous
from arraycomm.core.group.arguments import group_seconds
from arraycomm.core.group.group import Group
from arraycomm.core.group.start import open_group
from arraycomm.core.interface import registry
from arraycomm.distributed.process_groups.backend import BackendConfig
from arraycomm.distributed.process_groups.process_group import ProcessGroup as FacadeGroup
from arraycomm.distributed.store import Store

from . import functional
from .process_group import ProcessGroup


def create(options: Any, pg_options: Any) -> Any:
    """The factory for register_backend(): called on each member of a new group, with torch's _DistributedBackendOptions."""
    kind = pg_options if isinstance(pg_options, type) else ProcessGroup  # as_gloo.py passes its own class
    if pg_options is not None and kind is ProcessGroup:
        warnings.warn("backend 'arraycomm' has no options of its own: pg_options is ignored", stacklevel=4)
    functional.register()
    world = torch.distributed.group.WORLD
    if isinstance(world, ProcessGroup):
        core, meeting = _part(world, options), world.facade._meeting
    else:
        core, meeting = _world(options.store, options.group_rank, options.group_size, options.timeout)
    ranks = options.global_ranks_in_group or range(options.group_size)
    group = FacadeGroup._of(core, ranks, name=options.group_id, desc=None, backend="arraycomm",
                        config=BackendConfig("cpu:gloo"), meeting=meeting)
    return kind(group, options.store)


def _world(store: Any, rank: int, size: int, timeout: timedelta) -> tuple[Group, Rendezvous]:
    meeting = rendezvous(store=BorrowedStore(store, timeout), rank=rank, world_size=size, timeout=timeout)
    return open_group(meeting, registry.choose("socket"), group_seconds(timeout.total_seconds()), "torch"), meeting


def _part(world: ProcessGroup, options: Any) -> Group:
    """torch may reuse a destroyed group's name, and the core may not: the members count the uses of each name."""
    members = tuple(options.global_ranks_in_group)
    uses: Counter[tuple[Any, ...]] = world.uses
    uses[options.group_id, members] += 1
    name = f"{options.group_id}#{uses[options.group_id, members]}"
    return world.facade.core.subgroup(members, name, timeout=options.timeout.total_seconds())  # type: ignore[no-any-return]


def _told(call: Callable[..., Any], *args: Any) -> Any:
    """Converts torch's store errors to arraycomm's. A FileStore raises a plain RuntimeError at its timeout."""
    try:
        return call(*args)
    except (torch.distributed.DistError, RuntimeError) as error:
        raise DistStoreError(f"torch's store: {error}") from error


class BorrowedStore(Store):
    """Adapts a torch.distributed.Store for the rendezvous."""

    def __init__(self, store: Any, timeout: timedelta | None = None) -> None:
        super().__init__(timeout)
        self._store = store

    def set(self, key: str, value: str | bytes) -> None:
        _told(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes(_told(self._store.get, key))

    def add(self, key: str, amount: int) -> int:
        return int(_told(self._store.add, key, amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return bytes(_told(self._store.compare_set, key, expected, desired))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        _told(self._store.wait, list(keys), self.timeout if timeout is None else timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return bool(_told(self._store.check, list(keys)))

    def delete_key(self, key: str) -> bool:
        return bool(_told(self._store.delete_key, key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.wait(keys)
        return [bytes(value) for value in _told(self._store.multi_get, list(keys))]

"""Backends that programs register: how the core calls what Backend.register_backend() was given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from arraycomm.core.arrays.types import DEVICE_TYPES
from arraycomm.core.base.typed import Any
from arraycomm.core.bootstrap.rendezvous import Rendezvous
from arraycomm.core.interface.backend import Communicator

from .backend import Backend, Plugin
from .derived import DerivedCommunicator

_NEEDED = ("rank", "size", "name", "closed", "close", "abort", "check_peers")  # what Group uses beside the operations


class DistributedBackendOptions:
    """What a backend of the extended form gets: where its ranks meet, and which of them this is."""

    def __init__(self, meeting: Rendezvous, timeout: float, group_id: str, ranks: Sequence[int]) -> None:
        self.store = meeting.store
        self.group_rank = meeting.rank
        self.group_size = meeting.size
        self.timeout = timedelta(seconds=timeout)
        self.group_id = group_id
        self.global_ranks_in_group = list(ranks)


class PluginBackend:
    """Follows arraycomm.core.interface.backend.Backend. ranks: the global ones of the group that it is to open."""

    on_gpus = "arraycomm.core.gpu.staged:Staged"

    def __init__(self, name: str, plugin: Plugin, pg_options: Any, ranks: Sequence[int]) -> None:
        self.name = name
        self.devices = frozenset(code for device in Backend.backend_capability[name] for code in DEVICE_TYPES[device])
        self._plugin, self._options, self._ranks = plugin, pg_options, ranks

    def unavailable(self) -> str | None:
        return None

    def meet(self, timeout: float, name: str) -> Rendezvous | None:
        return None

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> Communicator:
        """Raises TypeError when what the function made is no Communicator, else what it raises."""
        if self._plugin.extended_api:
            options = DistributedBackendOptions(meeting, timeout, name, self._ranks)
            made: Any = self._plugin.creator_fn(options, self._options)
        else:
            made = self._plugin.creator_fn(meeting.store, meeting.rank, meeting.size, timedelta(seconds=timeout))
        if hasattr(made, "group_desc"):  # a ProcessGroup, which imports this module
            made = DerivedCommunicator(made)
            if (made.rank, made.size) != (meeting.rank, meeting.size):
                raise ValueError(f"backend {self.name!r} made rank {made.rank} of {made.size} where rank {meeting.rank} of "
                                 f"{meeting.size} is")
        missing = [part for part in _NEEDED if not hasattr(made, part)]
        if missing:
            raise TypeError(f"backend {self.name!r} gave a {type(made).__name__} without {', '.join(missing)}: it must be "
                            "a Communicator as arraycomm.core.interface.backend describes it, or a ProcessGroup")
        if not hasattr(made, "shortcut"):
            made.shortcut = None
        found: Communicator = made
        return found

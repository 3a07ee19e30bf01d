"""ProcessGroup: the handle that every function of arraycomm.distributed takes, and how one is opened."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from datetime import timedelta

from arraycomm.core import settings
from arraycomm.core.digest import sha256
from arraycomm.core.group import Group
from arraycomm.core.rendezvous import Rendezvous
from arraycomm.core.start import open_group

from . import backend as backends
from .backend import DEVICE_CODES, BackendConfig

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

_CPU = 1  # DLPack's device type; also of what has only the buffer protocol
_SHOWN = 8  # ranks that a group's name in messages lists


class BackendType(enum.IntEnum):
    """torch's numbers."""

    UNDEFINED = 0
    GLOO = 1
    NCCL = 2
    UCC = 3
    MPI = 4
    XCCL = 5
    CUSTOM = 6


class ProcessGroup:
    """Ranks that communicate. Made by init_process_group() and new_group().

    Attributes: core (the arraycomm.Group that carries its operations; with several backends the CPU's), ranks (global
    ranks in group order), group_name (of no other group that is open), group_desc, bound_device_id (None or a device),
    backend (as it was asked for), config (BackendConfig).
    """

    BackendType = BackendType

    def __init__(self, cores: Mapping[str, Group], ranks: Sequence[int], *, name: str, desc: str, backend: str,
                 config: BackendConfig, bound_device_id: Any = None) -> None:
        """cores: by device type."""
        self.core = cores["cpu"] if "cpu" in cores else next(iter(cores.values()))
        self.ranks = tuple(ranks)
        self.group_name, self.group_desc = name, desc
        self.backend, self.config = backend, config
        self.bound_device_id = bound_device_id
        self._cores = {code: core for device, core in cores.items() for code in DEVICE_CODES.get(device, ())}
        self._single = all(core is self.core for core in cores.values())

    def __repr__(self) -> str:
        return (f"<arraycomm.distributed.ProcessGroup {self.group_name!r} ({self.group_desc}): rank {self.rank()} of "
                f"{self.size()}, {self.config}>")

    def rank(self) -> int:
        """This process's rank in the group."""
        return self.core.rank

    def size(self) -> int:
        return self.core.size

    def name(self) -> str:
        """Of the backend."""
        return self.backend

    def for_array(self, x: Any) -> Group:
        """The core group for the device on which x lies. ValueError where the group has no backend for it."""
        if self._single:
            return self.core
        export = getattr(x, "__dlpack_device__", None)
        code = int(export()[0]) if export else _CPU
        if code not in self._cores:
            device = next((name for name, codes in DEVICE_CODES.items() if code in codes), f"DLPack device type {code}")
            raise ValueError(f"No backend type associated with device type {device}: group {self.group_name!r} has "
                             f"{self.config}")
        return self._cores[code]

    def engines(self) -> list[Group]:
        """The core groups, each once."""
        return list(dict.fromkeys([self.core, *self._cores.values()]))

    def close(self) -> None:
        for engine in self.engines():
            engine.close()

    def abort(self) -> None:
        """Ends every operation under way, here and on the peers."""
        for engine in self.engines():
            engine.abort("ProcessGroup.abort() was called")

    def shutdown(self) -> None:
        self.close()


def default_timeout() -> timedelta:
    return timedelta(seconds=settings.get_number("ARRAYCOMM_TIMEOUT"))


def seconds_of(timeout: object) -> float:
    """Of a timedelta, or None: the default. Raises TypeError for anything else, ValueError for one of 0 or less."""
    if timeout is None:
        timeout = default_timeout()
    if not isinstance(timeout, timedelta):
        raise TypeError(f"Expected timeout argument to be of type datetime.timedelta, got {timeout!r}")
    if timeout <= timedelta(0):
        raise ValueError(f"timeout must be above 0, got {timeout}")
    return timeout.total_seconds()


def open_world(meeting: Rendezvous, config: BackendConfig, timeout: float, pg_options: Any) -> dict[str, Group]:
    """The core groups of all ranks, by device type. Closes the meeting when it fails, and with the groups."""
    names = list(dict.fromkeys(config.device_backend_map.values()))
    ranks = range(meeting.size)
    opened: dict[str, Group] = {}
    try:
        for name in names[1:]:  # first the others: the meeting is closed with the first one
            opened[name] = open_group(meeting.part(ranks, f"backend {name}"), backends.find(name, pg_options, ranks),
                                      timeout, f"world {name}")
    except BaseException:
        _close(opened)
        meeting.close()
        raise
    try:
        opened[names[0]] = open_group(meeting, backends.find(names[0], pg_options, ranks), timeout, "world")
    except BaseException:
        _close(opened)
        raise
    return {device: opened[name] for device, name in config.device_backend_map.items()}


def open_part(parent: ProcessGroup, meeting: Rendezvous, ranks: Sequence[int], turn: int, config: BackendConfig,
              timeout: float, pg_options: Any) -> dict[str, Group]:
    """The core groups of these ranks of `parent`, the default group. Called by them alone; turn: how many it were before."""
    label = f"{_shown(ranks)}#{turn}"
    opened: dict[str, Group] = {}
    try:
        for name in dict.fromkeys(config.device_backend_map.values()):
            engine = backends.find(name, pg_options, ranks)
            alike = next((core for core in parent.engines() if core.backend == engine.name and name == _plain(name)), None)
            if alike is not None:
                opened[name] = alike.subgroup(ranks, label, timeout=timeout)
            else:
                opened[name] = open_group(meeting.part(ranks, f"{name} {label}"), engine, timeout, f"{name} {label}")
    except BaseException:
        _close(opened)
        raise
    return {device: opened[name] for device, name in config.device_backend_map.items()}


def _plain(name: str) -> str:
    """The name, "" for a backend that users registered: those make a communicator per group."""
    return "" if name in backends.Backend._plugins else name


def _shown(ranks: Sequence[int]) -> str:
    if len(ranks) <= _SHOWN:
        return ",".join(map(str, ranks))
    return f"{ranks[0]}..{ranks[-1]}:{sha256(','.join(map(str, ranks)).encode()).hexdigest()[:16]}"


def _close(opened: Mapping[str, Group]) -> None:
    for group in opened.values():
        group.close("a failed start")

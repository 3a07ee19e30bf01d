"""torch's experimental object API: groups as objects, which nothing registers and no other function finds.

    group = new_group("gloo", timeout=timedelta(seconds=60), device="cpu")
    group.allreduce(x).wait()

arraycomm.dist2 is this module with the classes that its methods take and give.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Protocol

from arraycomm.core.bootstrap.rendezvous import Rendezvous, rendezvous

from .operations.reduce_op import ReduceOp
from .process_groups import backend as backends
from .process_groups import devices
from .process_groups.backend import Backend, BackendConfig
from .process_groups.members import Nobody
from .process_groups.process_group import ProcessGroup, open_world, part_of, seconds_of
from .process_groups.world import state

__all__ = ["ProcessGroup", "ProcessGroupFactory", "ReduceOp", "current_process_group", "new_group", "process_group",
           "register_backend"]

_current = threading.local()  # .group: this thread's current group, set by process_group()


class ProcessGroupFactory(Protocol):
    """The signature of a function for register_backend(). The store is that of the ranks' rendezvous.

    - Blocks: as long as the program's function does.
    - Timeout: the one that new_group() was given, a timedelta.
    - Errors: those of the program's function.

    Examples:
        >>> def factory(store, rank, world_size, timeout, device, **options):
        ...     return "my group"
        >>> callable(factory)
        True
    """

    def __call__(self, store: Any, rank: int, world_size: int, timeout: timedelta, device: Any, **kwargs: Any) -> Any: ...


def register_backend(name: str, func: ProcessGroupFactory) -> None:
    """Makes new_group(name, ...) call func, a ProcessGroupFactory.

    - Blocks: never; nothing is sent.
    - Errors: ValueError when the name is taken, TypeError where func cannot be called.

    Examples:
        >>> def factory(store, rank, world_size, timeout, device, **options):
        ...     return "my group"
        >>> dist2.register_backend("documented", factory)
        >>> dist2.register_backend("gloo", factory)
        Traceback (most recent call last):
        ValueError: Backend gloo already registered
    """
    if not callable(func):
        raise TypeError(f"register_backend() takes a function that makes the group, got {func!r}")
    if name in state.factories or backends.is_registered(name):
        raise ValueError(f"Backend {name} already registered")
    state.factories[name] = func


def new_group(backend: str, timeout: timedelta, device: Any, **kwargs: Any) -> Any:
    """A group of ranks that all call it. It is not registered anywhere; close it by shutdown().

    Without init_method, store, rank and world_size the ranks of the environment meet (env://). With them the group is a world of
    its
    own; a process may have several. With enable_reconfigure=True and a store the call does not wait: the group has no members
    before its reconfigure().

    Args:
        backend: a registered name, such as "gloo".
        timeout: a timedelta for this call, and the default of the group's operations.
        device: what this process works on, as "cpu" or "cuda:0".
        kwargs: init_method, or store, with rank and world_size; others go to a registered function.

    - Blocks: until every rank has come.
    - Timeout: DistStoreError names the ranks that did not come.
    - Errors: ValueError for an unknown backend or a device that it does not serve, TypeError for a timeout that is no timedelta
      and for
      unknown keywords, RuntimeError for an unknown device.

    Examples:
        >>> def work(group):
        ...     pg = dist2.new_group("gloo", timedelta(seconds=60), "cpu", store=store, rank=group.rank, world_size=2)
        ...     x = np.full(1, pg.rank() + 1)
        ...     pg.allreduce(x).wait()
        ...     pg.shutdown()
        ...     return x.item()
        >>> store = dist.HashStore()
        >>> arraycomm.run(work, 2)
        [3, 3]
    """
    factory = state.factories.get(backend)
    if factory is None and not backends.is_registered(backend):
        known = [*backends.registered(), *state.factories]
        raise ValueError(f"Backend {backend} not registered; registered are {', '.join(known)}")
    if timeout is None:  # elsewhere the default
        raise TypeError("new_group() of dist2 has no default timeout: give a datetime.timedelta, got None")
    seconds = seconds_of(timeout)
    if factory is not None:
        meeting, _ = _part_of_environment(timeout)
        return factory(meeting.store, meeting.rank, meeting.size, timeout, device, **kwargs)
    config, bound, store = BackendConfig(backend), _bound(backend, device), kwargs.get("store")
    if kwargs.pop("enable_reconfigure", False):
        meeting, name = _alone(backend, **kwargs)
        core: Any = Nobody(seconds)
    else:
        meeting, name = _meet(backend, timeout, **kwargs)
        core = open_world(meeting, config, seconds, None, bound)
    return ProcessGroup._of(core, range(meeting.size), name=name, desc=None, backend=Backend(backend), config=config,
                        meeting=meeting, bound_device_id=bound, base=store)


def _bound(backend: str, device: Any) -> Any:
    """The group's bound device: None for the host, or for a device without an index."""
    kind, served = devices.type_of(device), BackendConfig(backend).device_backend_map
    if kind not in served:
        raise ValueError(f"backend {backend!r} does not serve devices of type {kind}; it serves {', '.join(served)}")
    numbered = isinstance(device, int) or ":" in str(device)
    return devices.bound(device) if kind != "cpu" and numbered else None


def _meet(backend: str, timeout: timedelta, *, init_method: str | None = None, store: Any = None, rank: int | None = None,
          world_size: int | None = None, **unknown: Any) -> tuple[Rendezvous, str]:
    """The rendezvous of a new group's ranks, and the group's name."""
    if unknown:
        raise TypeError(f"backend {backend!r} takes no {', '.join(unknown)}; it takes init_method, store, rank and world_size")
    if (init_method, store, rank, world_size) == (None,) * 4:
        return _part_of_environment(timeout)
    meeting = rendezvous(init_method, rank=rank, world_size=world_size, store=store, timeout=timeout, name="object",
                         backend=BackendConfig(backend)._spelled())
    return meeting, f"object {meeting.job[:8]}"


def _alone(backend: str, *, store: Any = None, **unknown: Any) -> tuple[Rendezvous, str]:
    """The rendezvous of a group without members: no rank is awaited before reconfigure()."""
    if unknown:
        raise TypeError(f"backend {backend!r} takes no {', '.join(unknown)} together with enable_reconfigure: reconfigure() "
                        "sets rank and size")
    if store is None:
        raise TypeError("enable_reconfigure needs store=, in which the members will meet")
    job = os.urandom(16).hex()
    return Rendezvous(-1, 0, store, None, job, []), f"object {job[:8]}"


def _part_of_environment(timeout: timedelta) -> tuple[Rendezvous, str]:
    """All env:// groups use one store for the rendezvous, because its address can be served only once."""
    met = state.shared if state.default is None else state.default._meeting
    if met is None:
        met = state.shared = rendezvous("env://", timeout=timeout, name="objects")
    return part_of(met, "object")


def current_process_group() -> Any:
    """The group that process_group() has made current in this thread; None without one.

    - Blocks: never; nothing is sent.
    - Errors: none; it has no arguments.

    Examples:
        >>> dist2.current_process_group() is None
        True
    """
    return getattr(_current, "group", None)


@contextlib.contextmanager
def process_group(pg: Any) -> Iterator[None]:
    """A context in which `pg` is this thread's current group.

    - Blocks: never; nothing is sent.
    - Errors: none; any object is accepted.

    Examples:
        >>> with dist2.process_group("mine"):
        ...     dist2.current_process_group()
        'mine'
    """
    before = current_process_group()
    _current.group = pg
    try:
        yield
    finally:
        _current.group = before

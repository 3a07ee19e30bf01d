"""torch's experimental object API: groups as objects, which nothing registers and no other function finds.

    group = new_group("gloo", timeout=timedelta(seconds=60), device="cpu")
    group.allreduce(x).wait()
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta

from arraycomm.core.rendezvous import rendezvous

from . import backend as backends
from .backend import Backend, BackendConfig
from .process_group import ProcessGroup, open_world, part_of, seconds_of
from .reduce_op import ReduceOp
from .world import state

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any, Protocol
else:
    Protocol = object

__all__ = ["ProcessGroup", "ProcessGroupFactory", "ReduceOp", "current_process_group", "new_group", "process_group",
           "register_backend"]

_current = threading.local()  # .group: what process_group() has made current in this thread


class ProcessGroupFactory(Protocol):
    """What register_backend() takes: called with the store in which the ranks have met."""

    def __call__(self, store: Any, rank: int, world_size: int, timeout: timedelta, device: Any, **kwargs: Any) -> Any: ...


def register_backend(name: str, func: ProcessGroupFactory) -> None:
    """Makes new_group(name, ...) call func. Raises ValueError when the name is taken."""
    if name in state.factories or backends.is_registered(name):
        raise ValueError(f"Backend {name} already registered")
    state.factories[name] = func


def new_group(backend: str, timeout: timedelta, device: Any, **kwargs: Any) -> Any:
    """A group of all ranks, which meet as init_process_group() says for env://. Every rank calls it.

    Closed by its shutdown(). kwargs: for a registered factory; our own backends take none.
    Raises ValueError for an unknown backend, TypeError for a timeout that is no timedelta or keywords that nobody takes.
    """
    factory = state.factories.get(backend)
    if factory is None and not backends.is_registered(backend):
        known = [*backends.registered(), *state.factories]
        raise ValueError(f"Backend {backend} not registered; registered are {', '.join(known)}")
    if factory is None and kwargs:
        raise TypeError(f"backend {backend!r} takes no {', '.join(kwargs)}")
    seconds = seconds_of(timeout)
    met = state.meeting or state.shared
    if met is None:
        met = state.shared = rendezvous("env://", timeout=timeout, name="objects")
    meeting, name = part_of(met, "object")
    if factory is not None:
        return factory(meeting.store, meeting.rank, meeting.size, timeout, device, **kwargs)
    config = BackendConfig(backend)
    cores = open_world(meeting, config, seconds, None)
    return ProcessGroup(cores, range(meeting.size), name=name, desc=None, backend=Backend(backend), config=config)


def current_process_group() -> Any:
    """The group that process_group() has made current in this thread, or None."""
    return getattr(_current, "group", None)


@contextlib.contextmanager
def process_group(pg: Any) -> Iterator[None]:
    """Makes a group the current one of this thread while the block lasts."""
    before = current_process_group()
    _current.group = pg
    try:
        yield
    finally:
        _current.group = before

"""Dispatches an array to one of a group's communicators by its device type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arrays.buffer import Buffer
from ..arrays.types import DeviceType, device_name
from ..base.errors import DeviceError
from ..interface.backend import Backend, Communicator, Mover, Watch
from ..interface.registry import spelled

if TYPE_CHECKING:
    from ..gpu.staged import Staged

_CPU, _CUDA = int(DeviceType.CPU), frozenset((int(DeviceType.CUDA), int(DeviceType.CUDA_MANAGED)))


class Route(NamedTuple):
    """A group's communicator of one backend, and the device types (DLPack's) assigned to it; empty: all that it supports."""

    backend: Backend
    communicator: Communicator
    types: frozenset[int] = frozenset()


class Routes:
    """The routes of one group. If only a backend for host memory is available, CUDA arrays are staged (gpu/staged.py).

    main: the communicator for barriers, objects and counts: the CPU's if there is one. by_type: a cache of the
    communicator for each device type. name: of the backends.
    """

    def __init__(self, routes: Sequence[Route], timeout: float) -> None:
        self._routes, self._timeout = routes, timeout
        self._staged: list[Staged] = []
        self.name = spelled({route.backend.name: route.types for route in routes})
        self.main = next((route for route in routes if _CPU in route.types), routes[0]).communicator
        self.by_type: dict[int, Mover] = {
            code: route.communicator for route in routes for code in route.backend.devices
            if not route.types or code in route.types}

    def find(self, src: Buffer, group: str) -> None:
        """Finds and caches the communicator of a device type. DeviceError if there is none."""
        for route in self._routes:
            if src.device_type in _CUDA and _CPU in route.backend.devices and _CUDA & (route.types or _CUDA):
                module, _, name = route.backend.on_gpus.partition(":")  # lazy: only for groups with such arrays
                self._staged.append(getattr(import_module(module), name)(route.communicator, self._timeout))
                self.by_type |= dict.fromkeys(_CUDA, self._staged[-1])
                return
        raise DeviceError(f"No backend type associated with device type {device_name(src.device_type)}: group {group!r} has "
                          f"{self.name}; copy the array to the CPU, or use a backend for that device")

    def split(self, members: Sequence[int], name: str, timeout: float, backends: Mapping[str, frozenset[int]] | None,
              watch: Watch | None = None) -> Routes:
        """See Communicator.split(). backends: those that the new group is to have, by name, with their `types`; None: all."""
        made: list[Route] = []
        wanted = {route.backend.name: route.types for route in self._routes} if backends is None else backends
        try:
            for route in self._routes:
                if route.backend.name in wanted:
                    split = (route.communicator.split(members, name, timeout=timeout) if watch is None else
                             route.communicator.split(members, name, timeout=timeout, watch=watch))
                    made.append(Route(route.backend, split, wanted[route.backend.name]))
        except BaseException as error:
            for route in made:
                route.communicator.close(type(error).__name__)
            raise
        return Routes(made, timeout)

    def handle(self, group: object) -> int:
        shortcut = self.main.shortcut
        if shortcut is None or _CPU not in self.by_type:
            raise TypeError(f"group {self.main.name!r} has no handle: native code calls the CPU's backends, not {self.name!r}")
        return int(shortcut.number(group))

    def batch(self) -> AbstractContextManager[Any]:
        return self.main.batch() if len(self._routes) == 1 else self._batches()

    @contextmanager
    def _batches(self) -> Iterator[None]:
        with ExitStack() as together:
            for route in self._routes:
                together.enter_context(route.communicator.batch())
            yield

    def check_peers(self) -> None:
        for route in self._routes:
            route.communicator.check_peers()

    def abort(self, reason: str) -> None:
        for route in self._routes:
            route.communicator.abort(reason)

    def close(self, reason: str = "") -> None:
        with ExitStack() as steps:  # in reverse order, all of them even after an error
            for staged in self._staged:
                steps.callback(staged.close)
            for route in self._routes:
                steps.callback(route.communicator.close, reason)

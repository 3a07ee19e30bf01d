"""Backends by name. A backend is imported lazily, on first use.

To add one: a class that follows core/interface/backend.py, in any package, which names it in its entry points of the group
"arraycomm.backends" (docs/internals/design.md).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..arrays.types import DEVICE_TYPES
from ..base.errors import DeviceError, DistBackendError
from .backend import Backend

_Loaded = TypeVar("_Loaded")

_TABLE: dict[str, str] = {
    "socket": "arraycomm.backends.socket:SocketBackend",
    "mpi": "arraycomm.backends.mpi:MpiBackend",
    "nccl": "arraycomm.backends.nccl:NcclBackend",
}
DEFAULT = next(iter(_TABLE))


def _installed() -> dict[str, str]:
    """Backends of other packages; searched only for a name that is not in the table."""
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group="arraycomm.backends")}


def names() -> tuple[str, ...]:
    """The registered backends, the preferred one first."""
    return (*_TABLE, *sorted(_installed().keys() - _TABLE.keys()))


def known(name: str) -> bool:
    """Whether a backend of this name is registered."""
    return name in _TABLE or name in _installed()


def load(name: str) -> Backend:
    """The backend of this name, whether it can be used or not.

    Raises ValueError for an unknown name, DistBackendError when it cannot be imported or made.
    """
    where = _TABLE.get(name) or _installed().get(name)
    if where is None:
        raise ValueError(f"unknown backend {name!r}; registered are {', '.join(names())}")
    module, _, attribute = where.partition(":")
    try:
        backend: Backend = getattr(importlib.import_module(module), attribute)()
        return backend
    except Exception as error:  # an error in another package
        raise DistBackendError(f"backend {name!r} ({where}) cannot be loaded: {type(error).__name__}: {error}") from error


def why_unavailable(name: str) -> str | None:
    """None if the backend can be used here, otherwise one sentence with the missing part."""
    try:
        return load(name).unavailable()
    except DistBackendError as error:
        return str(error)


def get(name: str) -> Backend:
    """The backend of this name, ready for use. Raises DistBackendError with the reason when it is not."""
    backend = load(name)
    reason = backend.unavailable()
    if reason is not None:
        raise DistBackendError(f"backend {name!r} is not available: {reason}")
    return backend


def pairs(text: str) -> dict[str, str]:
    """Parses "cpu:socket,cuda:nccl". ValueError for a duplicate or unknown device, and for a malformed pair."""
    found: dict[str, str] = {}
    for pair in text.split(","):
        device, _, name = pair.partition(":")
        if not device or not name or ":" in name:
            raise ValueError(f"Invalid device:backend pairing {pair!r} in {text!r}: write <device>:<backend>, several "
                             "with commas between, as cpu:socket,cuda:nccl")
        if device in found:
            raise ValueError(f"Duplicate device type {device} in {text!r}: each device type has one backend")
        if device not in DEVICE_TYPES:
            raise DeviceError(f"Expected one of {', '.join(DEVICE_TYPES)} as the device type, got {device!r} in {text!r}")
        found[device] = name
    return found


def choose(text: str) -> dict[Backend, frozenset[int]]:
    """The backends of "socket" or "cpu:socket,cuda:nccl", the first one first, each with the device types that are its own;
    one alone takes what it can. Raises as get() and pairs() do."""
    return assign(pairs(text), get) if ":" in text else {get(text): frozenset()}


def assign(by_device: Mapping[str, str], load: Callable[[str], _Loaded]) -> dict[_Loaded, frozenset[int]]:
    """As choose(): the backends of names, each loaded once, in an order that does not depend on the spelling."""
    names = dict.fromkeys(by_device[device] for device in DEVICE_TYPES if device in by_device)
    if len(names) == 1:
        return {load(name): frozenset() for name in names}
    return {load(name): frozenset().union(*(DEVICE_TYPES[device] for device, its in by_device.items() if its == name))
            for name in names}


def spelled(chosen: Mapping[str, frozenset[int]]) -> str:
    """Names and types as assign() gives them, in the one spelling that ranks compare: "socket", "cpu:socket,cuda:nccl"."""
    if len(chosen) == 1:
        return next(iter(chosen))
    return ",".join(f"{device}:{name}" for device, its in DEVICE_TYPES.items() for name, types in chosen.items() if its <= types)

"""Backends by name. A backend is imported when it is first asked for, never before.

To add one: a folder under backends/ with a class that follows core/backend.py, and a line here.
"""

from __future__ import annotations

import importlib

from .backend import Backend
from .errors import DistBackendError

_TABLE: dict[str, str] = {
    "socket": "arraycomm.backends.socket:SocketBackend",
    "mpi": "arraycomm.backends.mpi:MpiBackend",
    "nccl": "arraycomm.backends.nccl:NcclBackend",
}


def names() -> tuple[str, ...]:
    """The registered backends, the preferred one first."""
    return tuple(_TABLE)


def load(name: str) -> Backend:
    """The backend of this name, whether it can be used or not.

    Raises ValueError for an unknown name, DistBackendError when its module cannot be imported.
    """
    if name not in _TABLE:
        raise ValueError(f"unknown backend {name!r}; registered are {', '.join(_TABLE)}")
    module, attribute = _TABLE[name].split(":")
    try:
        backend: Backend = getattr(importlib.import_module(module), attribute)()
        return backend
    except ImportError as error:
        raise DistBackendError(f"backend {name!r} cannot be loaded: {error}") from error


def why_unavailable(name: str) -> str | None:
    """None when the backend can be used here, otherwise one sentence that says what is missing."""
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

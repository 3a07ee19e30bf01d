"""Stores for the rendezvous and for small values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Store
from .forwarding import PrefixStore
from .hash import HashStore
from .tcp import TCPStore

if TYPE_CHECKING:
    from .file import FileStore
    from .torch import TorchStore

__all__ = ["FileStore", "HashStore", "PrefixStore", "Store", "TCPStore", "TorchStore"]


def __getattr__(name: str) -> Any:
    """Loads the rarely used stores on demand."""
    if name in ("FileStore", "TorchStore"):
        from importlib import import_module

        return getattr(import_module(f".{name.removesuffix('Store').lower()}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

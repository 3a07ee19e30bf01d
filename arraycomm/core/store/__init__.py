"""Stores: how ranks meet and exchange small values."""

from .base import Store
from .file import FileStore
from .hash import HashStore
from .prefix import PrefixStore
from .tcp import TCPStore
from .torch import TorchStore

__all__ = ["FileStore", "HashStore", "PrefixStore", "Store", "TCPStore", "TorchStore"]

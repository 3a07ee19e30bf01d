"""Stores under torch's names. Programs may subclass Store with no more than set, get and add."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from functools import wraps

from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.base.typed import Any
from arraycomm.core.bootstrap import store as core

__all__ = ["FileStore", "HashStore", "PrefixStore", "Store"]


def _lacking(name: str) -> Any:
    """A stub for a method that a store lacks: it raises NotImplementedError."""
    @wraps(getattr(core.Store, name), updated=())  # without the abstract-method flag
    def method(self: Store, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"Not implemented. {type(self).__name__} has no {name}: define it in {type(self).__name__}")

    return method


class Store(core.Store):
    """Base of all stores. A subclass that is written in Python has to define set, get and add; wait, check, append,
    multi_get, multi_set and compare_set (towards "") are then made of these, and better where it defines them itself.

    Raises NotImplementedError, which names the method, where there is no way around it.
    """

    @property
    def _lists_keys(self) -> bool:  # type: ignore[override]
        return type(self).list_keys is not Store.list_keys

    set, get, add, check, delete_key, num_keys, queue_push, queue_pop, queue_len, list_keys, clone = map(_lacking, (
        "set", "get", "add", "check", "delete_key", "num_keys", "queue_push", "queue_pop", "queue_len", "list_keys", "clone"))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """By get(), which waits as long as the subclass makes it."""
        for key in keys:
            self.get(key)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Towards "", which means a missing key: the first who asks writes, as long as nobody uses set() on this key."""
        if expected not in ("", b""):
            _lacking("compare_set")(self)
        if self.add(f"{key}/first", 1) == 1:
            self.set(key, desired)
        return _as_bytes(self.get(key))

    def append(self, key: str, value: str | bytes) -> None:
        """By the subclass's compare_set, which loses one of two equal values at once, or by check, which is not atomic."""
        added = _as_bytes(value)
        if type(self).compare_set is Store.compare_set:
            self.set(key, (_as_bytes(self.get(key)) if self.check([key]) else b"") + added)
            return
        now, wanted = _as_bytes(self.compare_set(key, b"", b"")), None
        while now != wanted:
            wanted = now + added
            now = _as_bytes(self.compare_set(key, now, wanted))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [_as_bytes(self.get(key)) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        if len(keys) != len(values):
            raise DistStoreError(f"multi_set needs as many values as keys, got {len(keys)} keys and {len(values)}")
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set are single requests."""
        return all(getattr(type(self), name) is not getattr(Store, name) for name in ("append", "multi_get", "multi_set"))


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class HashStore(core.HashStore, Store):
    """A store in this process, for its threads."""

    def __init__(self) -> None:
        super().__init__()


class FileStore(core.FileStore, Store):
    """A store in a file, local or on a file system that the hosts share.

    world_size: how many use it, counting what they open; the last to go removes the file (-1: nobody does).
    """

    def __init__(self, file_name: str | os.PathLike[str], world_size: int = -1) -> None:
        super().__init__(file_name, world_size)


class PrefixStore(core.PrefixStore, Store):
    """`store`, with "prefix/" before every key."""

    @property
    def _underlying_non_prefix_store(self) -> core.Store:
        below = self.underlying_store
        return below._underlying_non_prefix_store if isinstance(below, PrefixStore) else below

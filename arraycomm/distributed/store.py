"""Stores under torch's names. Programs may subclass Store with no more than set, get and add."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.bootstrap import store as core

__all__ = ["FileStore", "HashStore", "PrefixStore", "Store"]


def _lacking(name: str) -> Any:
    """A stub for a method that a store lacks: it raises NotImplementedError."""
    @wraps(getattr(core.Store, name), updated=())  # without the abstract-method flag
    def method(self: Store, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"Not implemented. {type(self).__name__} has no {name}: define it in {type(self).__name__}")

    return method


class Store(core.Store):
    """Base of all stores. A program's subclass has to define set(), get() and add(); the other methods use these.

    wait(), check(), append(), multi_get(), multi_set() and compare_set(key, "", value) work with the three methods; they are
    better
    if the subclass defines them itself. Keys are str, values bytes (str is encoded as UTF-8).

    - Blocks: get(), wait(), multi_get(), queue_pop() and barrier() wait for other users of the store.
    - Timeout: that of the store, 300 s by default; DistStoreError names the keys.
    - Errors: NotImplementedError names the method that the subclass has to define. DistStoreError when the store cannot be
      reached.

    Examples:
        >>> class Mine(dist.Store):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.values = {}
        ...     def set(self, key, value):
        ...         self.values[key] = value
        ...     def get(self, key):
        ...         return self.values[key]
        ...     def add(self, key, amount):
        ...         self.values[key] = str(int(self.values.get(key, 0)) + amount)
        ...         return int(self.values[key])
        >>> Mine().compare_set("key", "", b"first"), Mine().has_extended_api()
        (b'first', False)
    """

    @property
    def _lists_keys(self) -> bool:  # type: ignore[override]
        return type(self).list_keys is not Store.list_keys

    set, get, add, check, delete_key, num_keys, queue_push, queue_pop, queue_len, list_keys, clone = map(_lacking, (
        "set", "get", "add", "check", "delete_key", "num_keys", "queue_push", "queue_pop", "queue_len", "list_keys", "clone"))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys are there, by get(), which waits as long as the subclass makes it.

        - Blocks: until other users have written them.
        - Timeout: not used; define wait() in the subclass for one.
        - Errors: those of the subclass's get().
        """
        for key in keys:
            self.get(key)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Writes `desired` if the key is missing; `expected` must be empty. Atomic as long as this key is not written by set().

        - Blocks: until the first caller has written.
        - Errors: NotImplementedError for an `expected` that is not empty.
        """
        if expected not in ("", b""):
            _lacking("compare_set")(self)
        if self.add(f"{key}/first", 1) == 1:
            self.set(key, desired)
        return _as_bytes(self.get(key))

    def append(self, key: str, value: str | bytes) -> None:
        """Adds bytes to the end of a value, by compare_set() of the subclass, or by check() and set(), which is not atomic.

        - Blocks: until the store has them.
        - Errors: those of the subclass's methods.
        """
        added = _as_bytes(value)
        if type(self).compare_set is Store.compare_set:
            self.set(key, (_as_bytes(self.get(key)) if self.check([key]) else b"") + added)
            return
        now, wanted = _as_bytes(self.compare_set(key, b"", b"")), None
        while now != wanted:
            wanted = now + added
            now = _as_bytes(self.compare_set(key, now, wanted))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys, in order, each by get().

        - Blocks: until other users have written them.
        - Timeout: the store's, for each key.
        - Errors: those of the subclass's get().
        """
        return [_as_bytes(self.get(key)) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Writes several values, each by set().

        - Blocks: until the store has them.
        - Errors: DistStoreError for lists of different lengths.
        """
        if len(keys) != len(values):
            raise DistStoreError(f"multi_set needs as many values as keys, got {len(keys)} keys and {len(values)}")
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether append(), multi_get() and multi_set() are single requests.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return all(getattr(type(self), name) is not getattr(Store, name) for name in ("append", "multi_get", "multi_set"))


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class HashStore(core.HashStore, Store):
    """A store in this process, for its threads.

    - Blocks: get(), wait(), multi_get(), queue_pop() and barrier() wait for other threads.
    - Timeout: that of the store, 300 s by default; DistStoreError names the keys.
    - Errors: TypeError for keys or values of another type, DistStoreError at a timeout.

    Examples:
        >>> store = dist.HashStore()
        >>> store.set_timeout(timedelta(seconds=10))
        >>> store.set("a", "1")
        >>> store.get("a"), store.add("n", 2), store.add("n", 3), store.compare_set("a", "1", "2")
        (b'1', 2, 5, b'2')
        >>> store.wait(["a", "n"], timedelta(seconds=1))
        >>> store.append("a", b"3")
        >>> store.multi_set(["x", "y"], ["5", "6"])
        >>> store.multi_get(["a", "x", "y"]), store.check(["a", "missing"])
        ([b'23', b'5', b'6'], False)
        >>> store.queue_push("jobs", "first")
        >>> store.queue_len("jobs"), store.queue_pop("jobs"), store.delete_key("x")
        (1, b'first', True)
        >>> sorted(store.list_keys()), store.num_keys(), store.has_extended_api(), store.timeout.seconds
        (['a', 'n', 'y'], 3, True, 10)
        >>> store.clone().barrier("all", 1)
        >>> store.close()
    """

    def __init__(self) -> None:
        super().__init__()


class FileStore(core.FileStore, Store):
    """A store in a file, on this host or on a file system that the hosts share.

    Args:
        world_size: how many users the file has, including those that this one clones; the last one removes the file. -1: the file
            stays.

    - Blocks: get(), wait(), multi_get(), queue_pop() and barrier() wait for other users.
    - Timeout: that of the store, 300 s by default; DistStoreError names the keys.
    - Errors: DistStoreError when the file cannot be opened or belongs to another user.

    Examples:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "store")
        >>> first, second = dist.FileStore(path, 2), dist.FileStore(path, 2)
        >>> first.set("key", "value")
        >>> second.get("key")
        b'value'
        >>> first.close(); second.close()
    """

    def __init__(self, file_name: str | os.PathLike[str], world_size: int = -1) -> None:
        super().__init__(file_name, world_size)


class PrefixStore(core.PrefixStore, Store):
    """`store`, with "prefix/" before every key. Prefixes may be nested.

    - Blocks: as the store's methods.
    - Timeout: that of the store.
    - Errors: those of the store.

    Examples:
        >>> below = dist.HashStore()
        >>> store = dist.PrefixStore("job", below)
        >>> store.set("key", "value")
        >>> below.get("job/key"), store.underlying_store is below
        (b'value', True)
    """

    @property
    def _underlying_non_prefix_store(self) -> core.Store:
        below = self.underlying_store
        return below._underlying_non_prefix_store if isinstance(below, PrefixStore) else below

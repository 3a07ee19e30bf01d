"""PrefixStore: a part of another store, whose keys all start with "prefix/"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from .base import Store
from .request import key_list, value_bytes


class PrefixStore(Store):
    """Several users of one store, each under a prefix of its own, do not meet. Nests: "one/two/key".

    The timeout is the underlying store's, which gets values as bytes.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(prefix, str) or not isinstance(store, Store):
            raise TypeError(f"PrefixStore needs a str and a Store, got {type(prefix).__name__} and "
                            f"{type(store).__name__}")
        self.prefix = prefix
        self.underlying_store = store

    @property
    def timeout(self) -> timedelta:
        return self.underlying_store.timeout

    @timeout.setter
    def timeout(self, timeout: timedelta) -> None:
        self.underlying_store.set_timeout(timeout)

    def _key(self, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"a key must be str, got {type(key).__name__}")
        return f"{self.prefix}/{key}"

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in key_list(keys)]

    def set(self, key: str, value: str | bytes) -> None:
        self.underlying_store.set(self._key(key), value_bytes(value))

    def get(self, key: str) -> bytes:
        return self.underlying_store.get(self._key(key))

    def get_within(self, key: str, timeout: timedelta) -> bytes:
        return self.underlying_store.get_within(self._key(key), timeout)

    def add(self, key: str, amount: int) -> int:
        return self.underlying_store.add(self._key(key), amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self.underlying_store.compare_set(self._key(key), value_bytes(expected), value_bytes(desired))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self.underlying_store.wait(self._keys(keys), timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return self.underlying_store.check(self._keys(keys))

    def delete_key(self, key: str) -> bool:
        return self.underlying_store.delete_key(self._key(key))

    def num_keys(self) -> int:
        """Of the whole underlying store, as torch's."""
        return self.underlying_store.num_keys()

    def append(self, key: str, value: str | bytes) -> None:
        self.underlying_store.append(self._key(key), value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self.underlying_store.multi_get(self._keys(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        self.underlying_store.multi_set(self._keys(keys), [value_bytes(value) for value in values])

    def queue_push(self, key: str, value: str | bytes) -> None:
        self.underlying_store.queue_push(self._key(key), value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self.underlying_store.queue_pop(self._key(key), block)

    def queue_len(self, key: str) -> int:
        return self.underlying_store.queue_len(self._key(key))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        self.underlying_store.barrier(self._key(key), world_size, timeout)

    @property
    def lists_keys(self) -> bool:  # type: ignore[override]
        return self.underlying_store.lists_keys

    def list_keys(self) -> list[str]:
        """The keys under this prefix, without it."""
        start = f"{self.prefix}/"
        return [key[len(start):] for key in self.underlying_store.list_keys() if key.startswith(start)]

    def will(self, name: str, entries: Mapping[str, str], *, posted: bool = False) -> bool:
        return self.underlying_store.will(self._key(name), {self._key(key): value for key, value in entries.items()},
                                          posted=posted)

    def clone(self) -> PrefixStore:
        return type(self)(self.prefix, self.underlying_store.clone())

    def has_extended_api(self) -> bool:
        return self.underlying_store.has_extended_api()

    def close(self) -> None:
        self.underlying_store.close()

"""ForwardingStore: delegates to another store; PrefixStore: with prefixed keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from .base import Store
from .request import key_list, value_bytes


class ForwardingStore(Store):
    """Delegates every call to `_inner`. A subclass maps the keys and defines clone()."""

    _inner: Store

    def _key(self, key: str) -> str:
        return key

    def _keys(self, keys: Sequence[str]) -> Sequence[str]:
        return keys

    def _where(self) -> str:
        return self._inner._where()

    @property
    def timeout(self) -> timedelta:
        return self._inner.timeout

    @timeout.setter
    def timeout(self, timeout: timedelta | float) -> None:
        self._inner.set_timeout(timeout)

    def set(self, key: str, value: str | bytes) -> None:
        self._inner.set(self._key(key), value_bytes(value))

    def get(self, key: str) -> bytes:
        return self._inner.get(self._key(key))

    def _get_within(self, key: str, timeout: timedelta) -> bytes:
        return self._inner._get_within(self._key(key), timeout)

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(self._key(key), amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._inner.compare_set(self._key(key), value_bytes(expected), value_bytes(desired))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._inner.wait(self._keys(keys), timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return self._inner.check(self._keys(keys))

    def delete_key(self, key: str) -> bool:
        return self._inner.delete_key(self._key(key))

    def num_keys(self) -> int:
        return self._inner.num_keys()

    def append(self, key: str, value: str | bytes) -> None:
        self._inner.append(self._key(key), value_bytes(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._inner.multi_get(self._keys(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        self._inner.multi_set(self._keys(keys), [value_bytes(value) for value in values])

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._inner.queue_push(self._key(key), value_bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._inner.queue_pop(self._key(key), block)

    def queue_len(self, key: str) -> int:
        return self._inner.queue_len(self._key(key))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        self._inner.barrier(self._key(key), world_size, timeout)

    @property
    def _lists_keys(self) -> bool:  # type: ignore[override]
        return self._inner._lists_keys

    def list_keys(self) -> list[str]:
        return self._inner.list_keys()

    def _will(self, name: str, entries: Mapping[str, str]) -> bool:
        return self._inner._will(self._key(name), {self._key(key): value for key, value in entries.items()})

    def has_extended_api(self) -> bool:
        return self._inner.has_extended_api()

    def close(self) -> None:
        self._inner.close()


class PrefixStore(ForwardingStore):
    """Several users of one store, each under a prefix of its own, do not meet. Nests: "one/two/key".

    The timeout is the underlying store's, which gets values as bytes; num_keys() counts all of its keys, as torch's does.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(prefix, str) or not isinstance(store, Store):
            wrong = ValueError if store is None else TypeError  # the exceptions that torch raises
            raise wrong(f"PrefixStore needs a str and a Store, got {type(prefix).__name__} and {type(store).__name__}")
        self._prefix = prefix
        self._inner = store

    @property
    def underlying_store(self) -> Store:
        """The store without this prefix.

        - Blocks: never, as any attribute.
        - Errors: none; it is set by the constructor.
        """
        return self._inner

    def _key(self, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"a key must be str, got {type(key).__name__}")
        return f"{self._prefix}/{key}"

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in key_list(keys)]

    def list_keys(self) -> list[str]:
        """The keys with this prefix, without it.

        - Blocks: never for other users; it asks the store once.
        - Errors: DistStoreError when the store cannot be reached.
        """
        start = f"{self._prefix}/"
        return [key[len(start):] for key in self._inner.list_keys() if key.startswith(start)]

    def clone(self) -> PrefixStore:
        return type(self)(self._prefix, self._inner.clone())

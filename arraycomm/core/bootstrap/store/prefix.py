"""PrefixStore: a part of another store, whose keys all start with "prefix/"."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Store
from .forwarding import ForwardingStore
from .request import key_list


class PrefixStore(ForwardingStore):
    """Several users of one store, each under a prefix of its own, do not meet. Nests: "one/two/key".

    The timeout is the underlying store's, which gets values as bytes; num_keys() counts all of its keys, as torch's does.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(prefix, str) or not isinstance(store, Store):
            wrong = ValueError if store is None else TypeError  # as torch has them
            raise wrong(f"PrefixStore needs a str and a Store, got {type(prefix).__name__} and {type(store).__name__}")
        self.prefix = prefix
        self._inner = store

    @property
    def underlying_store(self) -> Store:
        return self._inner

    def _key(self, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"a key must be str, got {type(key).__name__}")
        return f"{self.prefix}/{key}"

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in key_list(keys)]

    def list_keys(self) -> list[str]:
        """The keys under this prefix, without it."""
        start = f"{self.prefix}/"
        return [key[len(start):] for key in self._inner.list_keys() if key.startswith(start)]

    def clone(self) -> PrefixStore:
        return type(self)(self.prefix, self._inner.clone())

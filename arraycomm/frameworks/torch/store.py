"""BorrowedStore: torch's store as the core's, for ranks to meet in. It stays torch's and is not closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed

from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.bootstrap.store.base import Store


def _told(call: Callable[..., Any], *args: Any) -> Any:
    """torch's errors of a store as ours. A FileStore raises a plain RuntimeError at its timeout."""
    try:
        return call(*args)
    except (torch.distributed.DistError, RuntimeError) as error:
        raise DistStoreError(f"torch's store: {error}") from error


class BorrowedStore(Store):
    """A torch.distributed.Store behind the interface of arraycomm.core.bootstrap.store."""

    lists_keys = False  # not on every server that it may meet

    def __init__(self, store: Any, timeout: timedelta | None = None) -> None:
        super().__init__(timeout)
        self._store = store

    def set(self, key: str, value: str | bytes) -> None:
        _told(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes(_told(self._store.get, key))

    def add(self, key: str, amount: int) -> int:
        return int(_told(self._store.add, key, amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return bytes(_told(self._store.compare_set, key, expected, desired))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        _told(self._store.wait, list(keys), self.timeout if timeout is None else timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return bool(_told(self._store.check, list(keys)))

    def delete_key(self, key: str) -> bool:
        return bool(_told(self._store.delete_key, key))

    def num_keys(self) -> int:
        return int(_told(self._store.num_keys))

    def append(self, key: str, value: str | bytes) -> None:
        _told(self._store.append, key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self.wait(keys)
        return [bytes(value) for value in _told(self._store.multi_get, list(keys))]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        _told(self._store.multi_set, list(keys), list(values))

    def queue_push(self, key: str, value: str | bytes) -> None:
        _told(self._store.queue_push, key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return bytes(_told(self._store.queue_pop, key, block))

    def queue_len(self, key: str) -> int:
        return int(_told(self._store.queue_len, key))

    def list_keys(self) -> list[str]:
        return list(_told(self._store.list_keys))

    def clone(self) -> BorrowedStore:
        return BorrowedStore(_told(self._store.clone), self.timeout)

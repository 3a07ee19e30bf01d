"""RequestStore: the Store methods, each as one request to a local or remote Table."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from datetime import timedelta

from ...base.errors import DistStoreError, QueueEmptyError
from .base import Store, duration, wait_timeout
from .table import Op

_MOST = 2**63 - 1


class RequestStore(Store):
    """A subclass implements the transport of requests to its Table: `_call`."""

    @abc.abstractmethod
    def _call(self, op: int, fields: Sequence[bytes | int], timeout: float) -> list[bytes]:
        """The answer. Raises TimeoutError after `timeout` seconds."""

    def _wait_call(self, op: int, keys: Sequence[str], timeout: timedelta | None = None) -> list[bytes]:
        seconds = (self.timeout if timeout is None else timeout).total_seconds()
        try:
            return self._call(op, [key_bytes(key) for key in keys], seconds)
        except TimeoutError:
            raise wait_timeout(keys, seconds, self._where()) from None

    def _now(self, op: int, *fields: bytes | int) -> list[bytes]:
        return self._call(op, fields, 0.0)

    def set(self, key: str, value: str | bytes) -> None:
        self._now(Op.SET, key_bytes(key), value_bytes(value))

    def get(self, key: str) -> bytes:
        return self._wait_call(Op.AWAIT_VALUES, [key])[0]

    def _get_within(self, key: str, timeout: timedelta) -> bytes:
        return self._wait_call(Op.AWAIT_VALUES, [key], duration(timeout))[0]

    def add(self, key: str, amount: int) -> int:
        if not isinstance(amount, int):
            raise TypeError(f"add needs an int, got {type(amount).__name__}")
        if not -_MOST - 1 <= amount <= _MOST:
            raise ValueError(f"cannot add {amount} to key {key!r}: it does not fit 64 bits")
        return int(self._now(Op.ADD, key_bytes(key), amount)[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._now(Op.COMPARE_SET, key_bytes(key), value_bytes(expected), value_bytes(desired))[0]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._wait_call(Op.WAIT, key_list(keys), None if timeout is None else duration(timeout))

    def check(self, keys: Sequence[str]) -> bool:
        return self._now(Op.CHECK, *map(key_bytes, key_list(keys)))[0] == b"1"

    def delete_key(self, key: str) -> bool:
        return self._now(Op.DELETE, key_bytes(key))[0] == b"1"

    def num_keys(self) -> int:
        """The number of keys. TCPStore and FileStore count one of their own, as torch's do.

        - Blocks: never for other users; it asks the store once.
        - Errors: DistStoreError when the store cannot be reached.
        """
        return int(self._now(Op.NUM_KEYS)[0])

    def append(self, key: str, value: str | bytes) -> None:
        self._now(Op.APPEND, key_bytes(key), value_bytes(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._wait_call(Op.AWAIT_VALUES, key_list(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        if len(key_list(keys)) != len(values):
            raise DistStoreError(f"multi_set needs as many values as keys, got {len(keys)} keys and {len(values)}")
        self._now(Op.MULTI_SET, *[part for key, value in zip(keys, values, strict=True)
                                  for part in (key_bytes(key), value_bytes(value))])

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._now(Op.PUSH, key_bytes(key), value_bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        end = time.monotonic() + self.timeout.total_seconds()
        while not (found := self._now(Op.POP, key_bytes(key))):
            if not block:
                raise QueueEmptyError(f"queue {key!r} is empty")
            try:
                self._call(Op.WAIT, [key_bytes(key)], end - time.monotonic())
            except TimeoutError:
                raise wait_timeout([key], self.timeout.total_seconds(), self._where()) from None
        return found[0]

    def queue_len(self, key: str) -> int:
        return int(self._now(Op.QUEUE_LEN, key_bytes(key))[0])

    def list_keys(self) -> list[str]:
        return [key[1:].decode() for key in self._now(Op.LIST_KEYS) if key.startswith(b"/")]


def key_bytes(key: str) -> bytes:
    """Prefixes a user's key with a slash, as torch's stores do; keys without one are internal."""
    if not isinstance(key, str):
        raise TypeError(f"a key must be str, got {type(key).__name__}")
    return b"/" + key.encode()


def key_list(keys: Sequence[str]) -> Sequence[str]:
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"a list of keys is needed, got {type(keys).__name__}")
    return keys


def value_bytes(value: str | bytes) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a value must be str or bytes, got {type(value).__name__}")

"""Store: the key-value interface through which ranks meet. Subclass it to bring your own."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from datetime import timedelta

from ...base.errors import DistStoreError


class Store(abc.ABC):
    """Keys are str, values bytes (str is encoded as UTF-8). Blocking calls last at most `timeout` (a timedelta).

    Raises DistStoreError when a key does not come in time or the store cannot be reached, TypeError for keys or values
    of another type. Safe to use from several threads.
    """

    _lists_keys = True  # on every server that it may meet

    def __init__(self, timeout: timedelta | None = None) -> None:
        self.timeout = timeout if timeout is not None else timedelta(seconds=300)

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: timedelta | float) -> None:
        self._timeout = duration(timeout)

    @abc.abstractmethod
    def set(self, key: str, value: str | bytes) -> None: ...
    @abc.abstractmethod
    def get(self, key: str) -> bytes:
        """The value; waits until there is one."""

    @abc.abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Adds to a counter kept as decimal text (0 when missing) and returns the sum. ValueError on other text."""

    @abc.abstractmethod
    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Writes desired when the value is expected (or the key is missing and expected is empty).

        Returns the value afterwards; for a missing key and a non-empty expectation, the expectation.
        """

    @abc.abstractmethod
    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None: ...
    @abc.abstractmethod
    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there; never waits."""

    @abc.abstractmethod
    def delete_key(self, key: str) -> bool: ...
    @abc.abstractmethod
    def num_keys(self) -> int: ...
    @abc.abstractmethod
    def append(self, key: str, value: str | bytes) -> None: ...
    @abc.abstractmethod
    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """All values; waits until all are there."""

    @abc.abstractmethod
    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None: ...
    @abc.abstractmethod
    def queue_push(self, key: str, value: str | bytes) -> None: ...
    @abc.abstractmethod
    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """First in, first out. Not blocking and empty: QueueEmptyError. Blocking: DistStoreError at the timeout."""

    @abc.abstractmethod
    def queue_len(self, key: str) -> int: ...
    @abc.abstractmethod
    def list_keys(self) -> list[str]: ...
    @abc.abstractmethod
    def clone(self) -> Store:
        """The same type over the same data, with a connection of its own."""

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Gives back what the store holds (connection, server). Idempotent."""

    def _where(self) -> str:
        """What it is called in messages: where it is served, or its path."""
        return type(self).__name__

    def _get_within(self, key: str, timeout: timedelta) -> bytes:
        """get() with a timeout of its own."""
        self.wait([key], timeout)
        return self.get(key)

    def _will(self, name: str, entries: Mapping[str, str]) -> bool:
        """What the store is to write, where the keys are missing then, if this process ends: its last will.

        It also does so when the connection breaks or is closed. Without entries the will of that name is withdrawn.
        False where the store does not notice an end.
        """
        return False

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Waits until `world_size` users have called it with this key, and no longer than `timeout` (None: the store's).

        The key counts them, so it is for one barrier. Raises DistStoreError for those who did not come.
        """
        limit = self.timeout if timeout is None else duration(timeout)
        complete = f"{key}/last_member"
        if self.add(f"{key}/num_members", 1) >= world_size:
            self.set(complete, "1")
        try:
            self.wait([complete], limit)
        except DistStoreError as error:
            raise barrier_timeout(key, world_size, limit.total_seconds()) from error

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta | float) -> None:
        self.timeout = timeout


def duration(timeout: timedelta | float) -> timedelta:
    """A float is seconds, as torch's stores take it. Raises TypeError for anything else but a timedelta, ValueError for nan,
    inf and what no timedelta can hold."""
    if isinstance(timeout, timedelta):
        return timeout
    if not isinstance(timeout, float):
        raise TypeError(f"a timeout must be a datetime.timedelta, or seconds as a float, got {timeout!r}")
    try:
        return timedelta(seconds=timeout)
    except (ValueError, OverflowError):
        raise ValueError(f"a timeout cannot last {timeout} s; timedelta.max is the longest") from None


def seconds_of(timeout: timedelta) -> float:
    return duration(timeout).total_seconds()


def wait_timeout(keys: Sequence[str], seconds: float, where: str) -> DistStoreError:
    named = ", ".join(f"/{key}" for key in keys)
    return DistStoreError(f"wait timeout after {seconds * 1000:.0f}ms, keys: {named}; a rank that should have written them did "
                          f"not come or has failed ({where})")


def barrier_timeout(key: str, world_size: int, seconds: float) -> DistStoreError:
    return DistStoreError(f"barrier timeout after {seconds:g} s, key: {key}; fewer than {world_size} came")

"""Store: the key-value interface through which ranks meet. Subclass it to bring your own."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from datetime import timedelta

from ...base.errors import DistStoreError


class Store(abc.ABC):
    """A key-value store through which ranks meet. Subclass it to bring your own. Safe to use from several threads.

    Keys are str, values bytes (str is encoded as UTF-8).

    - Blocks: get(), wait(), multi_get(), queue_pop() and barrier() wait for other users of the store.
    - Timeout: that of the store, 300 s by default; DistStoreError names the keys.
    - Errors: DistStoreError when the store cannot be reached, TypeError for keys or values of another type.
    """

    _lists_keys = True  # on every server that it may meet

    def __init__(self, timeout: timedelta | None = None) -> None:
        self.timeout = timeout if timeout is not None else timedelta(seconds=300)

    @property
    def timeout(self) -> timedelta:
        """How long blocking calls wait, a timedelta.

        - Blocks: never, as any attribute.
        - Errors: TypeError for what is neither a timedelta nor a float of seconds.
        """
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: timedelta | float) -> None:
        self._timeout = duration(timeout)

    @abc.abstractmethod
    def set(self, key: str, value: str | bytes) -> None:
        """Writes a value, over an older one.

        - Blocks: until the store has it.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def get(self, key: str) -> bytes:
        """The value of a key. Waits until the key is there.

        - Blocks: until another user has written the key.
        - Timeout: the store's; DistStoreError names the key.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, which is kept as decimal text and begins at 0, and returns the sum. Atomic.

        - Blocks: until the store has added.
        - Errors: ValueError when the value is other text.
        """

    @abc.abstractmethod
    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Writes `desired` if the value is `expected`, or if the key is missing and `expected` is empty. Atomic.

        Returns the value afterwards; for a missing key and an `expected` that is not empty, `expected`.

        - Blocks: until the store has compared.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys are there.

        - Blocks: until other users have written them.
        - Timeout: a timedelta; None takes the store's. DistStoreError names the keys.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there.

        - Blocks: never for other users; it asks the store once.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def delete_key(self, key: str) -> bool:
        """Removes a key, and says whether it was there.

        - Blocks: until the store has removed it.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def num_keys(self) -> int:
        """The number of keys. TCPStore and FileStore count one of their own, as torch's do.

        - Blocks: never for other users; it asks the store once.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def append(self, key: str, value: str | bytes) -> None:
        """Adds bytes to the end of a value; a missing key begins empty. Atomic.

        - Blocks: until the store has them.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys, in order. Waits until all are there.

        - Blocks: until other users have written them.
        - Timeout: the store's; DistStoreError names the keys.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Writes several values in one request.

        - Blocks: until the store has them.
        - Errors: DistStoreError for lists of different lengths.
        """

    @abc.abstractmethod
    def queue_push(self, key: str, value: str | bytes) -> None:
        """Adds a value at the end of the queue of this key.

        - Blocks: until the store has it.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first value from the queue of this key.

        - Blocks: until there is one; never with block=False.
        - Timeout: the store's; DistStoreError names the key.
        - Errors: QueueEmptyError for an empty queue with block=False.
        """

    @abc.abstractmethod
    def queue_len(self, key: str) -> int:
        """The number of values in the queue of this key.

        - Blocks: never for other users; it asks the store once.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def list_keys(self) -> list[str]:
        """All keys of the store.

        - Blocks: never for other users; it asks the store once.
        - Errors: DistStoreError when the store cannot be reached.
        """

    @abc.abstractmethod
    def clone(self) -> Store:
        """A store of the same type over the same data, with a connection of its own.

        - Blocks: until it is connected.
        - Errors: DistStoreError or DistNetworkError when the store cannot be reached.
        """

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Closes the connection, and at the master the server. May be called again.

        - Blocks: a master for its clients, at most a moment.
        - Errors: none; later calls of other methods fail.
        """

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
        """Waits until `world_size` users have called it with this key. A key is for one barrier.

        - Blocks: until the last user has called it.
        - Timeout: a timedelta; None takes the store's. DistStoreError says that too few arrived.
        - Errors: DistStoreError when the store cannot be reached.
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
        """Whether append(), multi_get() and multi_set() are single requests.

        - Blocks: never; nothing is sent.
        - Errors: none; it has no arguments.
        """
        return True

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Sets how long blocking calls wait.

        - Blocks: never; nothing is sent.
        - Errors: TypeError for what is neither a timedelta nor a float of seconds.
        - Timeout: a timedelta, or seconds as a float.
        """
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
    return DistStoreError(f"barrier timeout after {seconds:g} s, key: {key}; fewer than {world_size} ranks arrived")

"""HashStore: a store for the threads of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from .request import RequestStore
from .table import CHANGING, Table


class HashStore(RequestStore):
    """Lies in this process's memory. Threads that share the object (or its clones) meet in it."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        super().__init__(timeout)
        self._table = Table()
        self._changed = threading.Condition()

    def _call(self, op: int, fields: Sequence[bytes | int], timeout: float) -> list[bytes]:
        end = time.monotonic() + timeout
        with self._changed:
            while (answer := self._table.apply(op, fields)) is None:
                left = min(max(end - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
                if not self._changed.wait(left) and time.monotonic() >= end:
                    raise TimeoutError
            if op in CHANGING:
                self._changed.notify_all()
            return answer

    def num_keys(self) -> int:
        """The number of keys.

        - Blocks: never; it is in this process.
        - Errors: none; it has no arguments.
        """
        return super().num_keys() - 1

    def clone(self) -> HashStore:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

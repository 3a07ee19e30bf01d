"""The flight recorder: the operations of a rank's groups, which the debug page (monitor/board.py) and a trace (trace.py) keep."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from operator import index
from typing import TYPE_CHECKING, Any

from ..group.group import Group
from ..interface.kinds import COLLECTIVES, RECORDED
from .watch import Call, Watcher

if TYPE_CHECKING:
    from collections.abc import MutableMapping

RUNNING, ASYNCHRONOUS, DONE, FAILED = range(4)  # states of an operation
Traits = tuple[str, tuple[int, ...], int]
_NUMBERS = {name: number for number, name in enumerate(RECORDED)}
_COLLECTIVES = frozenset(_NUMBERS[name] for name in COLLECTIVES)


class Entry:
    """One operation, by the number of its name. called: when an asynchronous call returned, ns, 0: not yet; sequence: which
    collective of its group, from 1; number: the flight's own."""

    __slots__ = ("_flight", "begun", "called", "kind", "nbytes", "number", "open", "operation", "peer", "row", "sequence",
                 "thread")

    def __init__(self, flight: Flight, row: int, operation: int, peer: int, kind: Any, nbytes: int) -> None:
        self._flight, self.row, self.operation, self.peer, self.kind, self.nbytes = flight, row, operation, peer, kind, nbytes
        self.called = self.sequence = self.number = 0
        self.open = True
        self.thread = threading.get_native_id()
        self.begun = time.monotonic_ns()

    def mark(self, state: int) -> None:
        """RUNNING or ASYNCHRONOUS. No effect after the end."""
        if self.open:
            if state == ASYNCHRONOUS and not self.called:
                self.called = time.monotonic_ns()
            self._flight.mark(self, state)

    def end(self, error: BaseException | None) -> None:
        self._flight.end(self, error)


class Flight:
    """Base class of both places. teller: error(exception) gives an object for its text."""

    def __init__(self, teller: Any) -> None:
        self._teller = teller
        self._lock = threading.RLock()  # Works end in any thread
        self._begun: dict[int, int] = {}  # collectives, by the group's row
        self._pid = os.getpid()

    def ours(self) -> bool:
        """False in a forked child: nothing is kept there, and the lock may belong to a thread of the parent's."""
        return os.getpid() == self._pid

    def begin(self, row: int, operation: int, peer: int, kind: Any, nbytes: int) -> Entry:
        """peer: of a message to it, else -1."""
        entry = Entry(self, row, operation, peer, kind, nbytes)
        if self.ours():
            with self._lock:
                if operation in _COLLECTIVES:
                    entry.sequence = self._begun[row] = self._begun.get(row, 0) + 1
                self._begin(entry)
        return entry

    def end(self, entry: Entry, error: BaseException | None) -> None:
        if not entry.open or not self.ours():
            return
        now = time.monotonic_ns()
        text = None
        with contextlib.suppress(Exception):  # one whose text cannot be had is an error all the same
            text = None if error is None else self._teller.error(error)
        with self._lock:
            if not entry.open:
                return
            entry.open = False
            refused = entry.sequence and isinstance(error, (TypeError, ValueError))
            if refused:  # before anything was sent: the number is the next one's
                self._begun[entry.row] = entry.sequence - 1
            self._end(entry, now, error is not None, text, counts=not refused)

    def mark(self, entry: Entry, state: int) -> None: ...
    def _begin(self, entry: Entry) -> None: ...
    def _end(self, entry: Entry, now: int, failed: bool, text: Any, *, counts: bool) -> None: ...


class Recording(Watcher):
    """Base class of the watchers that record in a flight. rows: the groups' numbers."""

    _flight: Flight
    rows: MutableMapping[Group, int]

    def about(self, operation: int, traits: Traits | None, given: dict[str, Any]) -> Any:
        """The kind of the call: the properties that similar calls share."""
        raise NotImplementedError

    def begin(self, call: Call) -> Entry:
        operation, given, x = _NUMBERS[call.name], call.parameters, call.array()
        dest: Any = given.get("dest")
        peer = index(dest) if hasattr(dest, "__index__") else -1  # any type is possible: arguments are checked later
        if not 0 <= peer < call.group.size:
            peer = -1
        kind = self.about(operation, x, given)
        return self._flight.begin(self.rows[call.group], operation, peer, kind, 0 if x is None else x[2])

    def begun(self, token: Entry) -> None:
        token.mark(ASYNCHRONOUS)

    def waits(self, token: Entry, still: bool = True) -> None:
        token.mark(RUNNING if still else ASYNCHRONOUS)

    def end(self, token: Entry, error: BaseException | None) -> None:
        token.end(error)

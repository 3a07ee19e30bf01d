"""Watchers whose operations are recorded in C (native/flight): those of the debug page (monitor/recorder.py) and of a trace.

The fast path itself records plain calls. For the first call of each kind it gets the kind's number from here. All other
calls are recorded by begin() and end().
"""

from __future__ import annotations

from operator import index

from ..base.typed import TYPE_CHECKING, Any
from ..group.group import Group
from ..interface.kinds import RECORDED
from .watch import Call, Watcher, array_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from arraycomm._engine import Flight, FlightEntry, FlightList

Traits = tuple[str, tuple[int, ...], int]
_NUMBERS = {name: number for number, name in enumerate(RECORDED)}
_RUNNING, _ASYNCHRONOUS = range(2)  # states of an entry


class Recording(Watcher):
    """Base class of both. rows: the groups' numbers."""

    _flight: Flight | FlightList
    rows: MutableMapping[Group, int]

    def about(self, operation: int, traits: Traits | None, given: dict[str, Any]) -> Any:
        """The number of the call's kind: the properties that similar calls share."""
        raise NotImplementedError

    def kind(self, operation: int, parameters: dict[str, Any]) -> Any:
        """As about(), called by the fast path."""
        return self.about(operation, array_of(parameters), parameters)

    def flight(self, group: Group) -> tuple[Flight | FlightList, int]:
        return self._flight, self.rows[group]

    def begin(self, call: Call) -> FlightEntry:
        operation, given, x = _NUMBERS[call.name], call.parameters, call.array()
        dest: Any = given.get("dest")
        peer = index(dest) if hasattr(dest, "__index__") else -1  # any type is possible: arguments are checked later
        if not 0 <= peer < call.group.size:
            peer = -1
        kind = self.about(operation, x, given)
        return self._flight.begin(self.rows[call.group], operation, peer, kind, 0 if x is None else x[2])

    def begun(self, token: FlightEntry) -> None:
        token.mark(_ASYNCHRONOUS)

    def waits(self, token: FlightEntry, still: bool = True) -> None:
        token.mark(_RUNNING if still else _ASYNCHRONOUS)

    def end(self, token: FlightEntry, error: BaseException | None) -> None:
        token.end(error)

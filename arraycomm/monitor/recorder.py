"""Recorder: the operations of a rank's groups, written to its board (core/diagnostics/flight.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from arraycomm.core.arrays.types import ReduceOp
from arraycomm.core.base.log import log
from arraycomm.core.diagnostics.flight import Recording, Traits
from arraycomm.core.diagnostics.watch import attach, detach
from arraycomm.core.group.group import Group

from .board import CLOSED, GROUPS, LINKS, Board, BoardFlight

_ERROR_LENGTH = 300


class Recorder(Recording):
    """Records a world and the groups split from it. on_close: called when the world has been closed."""

    def __init__(self, world: Group, board: Board, on_close: Callable[[], None]) -> None:
        self._world, self._board, self._on_close = world, board, on_close
        self._lock = threading.Lock()
        self._kinds: dict[Any, int] = {}
        self.rows = {}
        self._links: dict[tuple[int, int], int] = {}
        board.start()
        self._flight = BoardFlight(board, self)
        self.follow(world)

    def follow(self, child: Group) -> None:
        number = len(self.rows)
        if number == GROUPS:
            log().warning("the debug page shows %d groups of this rank; %r and later ones are not on it", GROUPS, child.name)
        if number >= GROUPS:
            return
        # A group's text contains the number of its row: the reader needs it.
        if not self._text({"group": child.name, "row": number, "rank": child.rank, "size": child.size}):
            log().warning("the debug page has no room for the name of group %r, which is not on it", child.name)
            return
        self.rows[child] = number
        attach(child, self)
        for grandchild in child._children:
            if not grandchild.closed:
                self.follow(grandchild)

    def stop(self) -> None:
        for group in self.rows:
            detach(group, self)

    def closed(self, group: Group) -> None:
        detach(group, self)
        if group is self._world:
            self._board.end(CLOSED)
            self._on_close()

    def about(self, operation: int, traits: Traits | None, given: dict[str, Any]) -> int:
        """The number of the text; 0 if the capacity is exhausted."""
        key = (operation, traits, given.get("root"), given.get("dest"), given.get("source"), given.get("tag"),
               _reduction(given.get("op")))
        try:
            number = self._kinds.get(key)
        except TypeError:  # not hashable, so not a valid argument: the operation raises the error
            return 0
        if number is None:
            names = ("root", "dest", "source", "tag", "op")
            told: dict[str, Any] = {name: value if isinstance(value, int) else str(value)
                                    for name, value in zip(names, key[2:], strict=True) if value is not None}
            if traits is not None:
                told |= {"dtype": traits[0], "shape": [int(n) for n in traits[1]]}
            number = self._text(told)
            if number:  # else there is no room for more
                self._kinds[key] = number
        return number

    def link(self, row: int, peer: int) -> int:
        """The number, from 1, of the link to this rank of this group; 0 where there are too many."""
        with self._lock:
            link = self._links.get((row, peer))
            if link is None:
                link = self._links[row, peer] = len(self._links)
                if link < LINKS:
                    self._board.text({"link": link, "row": row, "peer": peer})
                elif link == LINKS:
                    log().warning("the debug page counts the messages from this rank to %d others; not to more of them", LINKS)
        return link + 1 if link < LINKS else 0

    def error(self, error: BaseException) -> int:
        return self._text({"error": f"{type(error).__name__}: {error}"[:_ERROR_LENGTH]})

    def _text(self, about: dict[str, Any]) -> int:
        with self._lock:
            return self._board.text(about)


def _reduction(op: Any) -> str | None:
    if isinstance(op, ReduceOp):
        return str(op)
    return op if isinstance(op, str) else None

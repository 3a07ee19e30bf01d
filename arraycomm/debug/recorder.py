"""Writes what a rank's groups do on its board; a Watcher (core/watch.py)."""

from __future__ import annotations

import threading
import time

from arraycomm.core.group import Group
from arraycomm.core.log import log
from arraycomm.core.types import ReduceOp
from arraycomm.core.watch import Call, attach, detach

from .board import (
    ASYNCHRONOUS,
    CLOSED,
    DONE,
    ERROR_SHIFT,
    FAILED,
    GROUPS,
    LINKS,
    NUMBER,
    OPERATION_SHIFT,
    OPERATIONS,
    RECORD,
    RECORDS,
    RUNNING,
    Board,
)

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
_ERROR_LENGTH = 300


class Recorder:
    """Of a world and the groups split from it. on_close: called when the world has been closed."""

    def __init__(self, world: Group, board: Board, on_close: Callable[[], None]) -> None:
        self._world, self._board, self._on_close = world, board, on_close
        self._lock = threading.Lock()
        self._next = 0
        self._open: dict[int, _Token] = {}  # by slot: not to be overwritten
        self._kinds: dict[Any, int] = {}
        self._groups: dict[Group, tuple[int, int]] = {}  # its row, and how many collectives were counted before
        self._links: dict[tuple[int, int], int] = {}
        board.start()
        self.follow(world)

    def follow(self, child: Group) -> None:
        number = len(self._groups)
        if number == GROUPS:
            log().warning("the debug page shows %d groups of this rank; %r and later ones are not on it", GROUPS, child.name)
        if number >= GROUPS:
            return
        with self._lock:
            # Groups are rows of their own texts: the row's number must be known to the reader.
            known = self._board.text({"group": child.name, "row": number, "rank": child.rank, "size": child.size})
        if not known:
            log().warning("the debug page has no room for the name of group %r, which is not on it", child.name)
            return
        # Other watchers may have counted on this rank alone (a profiler's labels), or until a recorder before this one ended.
        self._groups[child] = number, child.__dict__.get("_count", 0)
        attach(child, self)
        for grandchild in child._children:
            if not grandchild.closed:
                self.follow(grandchild)

    def stop(self) -> None:
        for group in self._groups:
            detach(group, self)

    def closed(self, group: Group) -> None:
        detach(group, self)
        if group is self._world:
            self._board.end(CLOSED)
            self._on_close()

    # ---- operations ----

    def begin(self, call: Call) -> _Token:
        nbytes, kind = self._kind(call)
        (row, before), board = self._groups[call.group], self._board
        token = _Token(call, kind, row, nbytes, call.sequence and call.sequence - before)
        with self._lock:
            token.slot = self._slot()
            token.number = self._next
            self._open[token.slot] = token
            if token.sequence:
                group = board.groups + 3 * row
                board.words[group] = max(board.words[group], token.sequence)
            token.begun = time.monotonic_ns()
            self._write(token, 0, RUNNING)
        return token

    def _slot(self) -> int:
        """The next one that no operation under way has; where they have all, the next one."""
        for _ in range(RECORDS):
            self._next += 1
            if self._next % RECORDS not in self._open:
                break
        return self._next % RECORDS

    def begun(self, token: _Token) -> None:
        with self._lock:
            self._write(token, 0, ASYNCHRONOUS)

    def waits(self, token: _Token) -> None:
        with self._lock:
            if self._open.get(token.slot) is token:
                self._write(token, 0, RUNNING)

    def end(self, token: _Token, error: BaseException | None) -> None:
        now, board = time.monotonic_ns(), self._board
        group = board.groups + 3 * token.row
        with self._lock:
            if self._open.get(token.slot) is token:
                del self._open[token.slot]
                text = board.text({"error": f"{type(error).__name__}: {error}"[:_ERROR_LENGTH]}) if error is not None else 0
                self._write(token, now, DONE if error is None else FAILED, text)
            board.count(token.operation, token.nbytes, now - token.begun, error is not None)
            if not token.sequence:
                if token.peer is not None and error is None:
                    self._sent(token.row, token.peer, token.nbytes)
            elif isinstance(error, (TypeError, ValueError)):  # refused before anything was sent, and not counted
                board.words[group] = token.sequence - 1
            else:
                board.words[group + 1] = max(board.words[group + 1], token.sequence)
                board.words[group + 2] += token.nbytes

    def _sent(self, row: int, peer: int, nbytes: int) -> None:
        link = self._links.get((row, peer))
        if link is None:
            link = self._links[row, peer] = len(self._links)
            if link < LINKS:
                self._board.text({"link": link, "row": row, "peer": peer})
            elif link == LINKS:
                log().warning("the debug page counts the messages from this rank to %d others; not to more of them", LINKS)
        if link < LINKS:
            self._board.link(link, nbytes)

    def _write(self, token: _Token, ended: int, state: int, error: int = 0) -> None:
        what = state | token.operation << OPERATION_SHIFT | error << ERROR_SHIFT
        memory, at = self._board.memory, self._board.records + token.slot * RECORD.size
        # Number 0 is no record: this process may be stopped or killed before the rest is there.
        RECORD.pack_into(memory, at, 0, token.begun, ended, token.kind, token.row, token.sequence, token.nbytes, what)
        NUMBER.pack_into(memory, at, token.number)

    def _kind(self, call: Call) -> tuple[int, int]:
        """(bytes, the number of the text that tells everything that calls like this have in common)."""
        traits, given = call.array(), call.parameters
        key = (call.name, traits, given.get("root"), given.get("dest"), given.get("source"), given.get("tag"),
               _reduction(given.get("op")))
        try:
            number = self._kinds.get(key)
        except TypeError:  # what cannot be hashed is none of these: the operation says so
            return 0, 0
        if number is None:
            names = ("root", "dest", "source", "tag", "op")
            about: dict[str, Any] = {name: value if isinstance(value, int) else str(value)
                                     for name, value in zip(names, key[2:], strict=True) if value is not None}
            if traits is not None:
                about |= {"dtype": traits[0], "shape": [int(n) for n in traits[1]]}
            with self._lock:
                number = self._board.text(about)
                if number:  # else there is no room for more
                    self._kinds[key] = number
        return 0 if traits is None else traits[2], number


def _reduction(op: Any) -> str | None:
    if isinstance(op, ReduceOp):
        return str(op)
    return op if isinstance(op, str) else None


class _Token:
    """One operation."""

    __slots__ = ("begun", "kind", "nbytes", "number", "operation", "peer", "row", "sequence", "slot")

    def __init__(self, call: Call, kind: int, row: int, nbytes: int, sequence: int) -> None:
        self.operation, self.kind, self.row, self.sequence, self.nbytes = _NUMBERS[call.name], kind, row, sequence, nbytes
        peer = call.parameters.get("dest")
        self.peer: int | None = peer if isinstance(peer, int) and 0 <= peer < call.group.size else None
        self.slot = self.number = self.begun = 0

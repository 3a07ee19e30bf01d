"""One collective on device arrays, staged through pinned host memory in pieces.

A pipeline: while the host operates on a piece, the device downloads the next one and uploads the previous one. Events order the
copies. The host waits for the download of each piece, and at the end for the last upload.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..arrays.buffer import Buffer
from ..base.dropped import finish
from ..base.errors import CollectiveTimeout, ResourceError
from ..interface import backend
from . import pieces
from .lane import Lane
from .pinned import Block

DEPTH = 3  # pieces in pinned memory: one in download, one in the host's operation, one in upload


class Side:
    """The array that an operation reads or writes on this rank, and its blocks (elements of each)."""

    def __init__(self, buffer: Buffer, blocks: list[int], per_piece: int) -> None:
        self.buffer, self._blocks, self._per_piece = buffer, blocks, per_piece
        self._width = buffer.nbytes // buffer.count if buffer.count else 1

    def slices(self, index: int) -> list[tuple[int, int]]:
        return pieces.slices(self._blocks, index, self._per_piece)

    def nbytes(self) -> int:
        """Size of the first piece, which is the longest."""
        return sum(pieces.counts(self._blocks, 0, self._per_piece)) * self._width

    def pinned(self, index: int, block: Block) -> Buffer:
        """The Buffer of a piece in pinned memory, for the host's communicator."""
        count = sum(pieces.counts(self._blocks, index, self._per_piece))
        return Buffer(block.address, count, self.buffer.dtype, 1, 0, False, (count,), block)


class Slot:
    """Pinned memory of one piece, and the events of its copies. `busy`: its last upload may be pending."""

    def __init__(self, lane: Lane) -> None:
        self.down, self.up, self.busy = lane.event(), lane.event(), False
        self.source: Block | None = None
        self.target: Block | None = None

    def take(self, lane: Lane, source: Side | None, target: Side | None, *, together: bool) -> None:
        if together:
            self.source = lane.block(max(side.nbytes() for side in (source, target) if side is not None))
            self.target = self.source
        else:
            self.source = lane.block(source.nbytes()) if source else None
            self.target = lane.block(target.nbytes()) if target else None


class Operation:
    """The operation on this rank.

    source, target: None if this rank has no input or output. together: the host may operate in place on a piece.
    call(source, target, index, async_op=, timeout=): the host's operation on piece `index`.
    """

    def __init__(self, name: str, source: Side | None, target: Side | None, number: int, deadline: float,
                 call: Callable[..., Any], *, together: bool = False) -> None:
        self.name, self._source, self._target, self._number = name, source, target, number
        self._deadline, self._call, self._together = deadline, call, together
        self._slots: list[Slot] = []
        self.timeout = deadline - time.monotonic()
        self.touches = [side.buffer for side in (source, target) if side is not None]

    def begin(self, lane: Lane, *, whole: bool) -> None:
        """Allocates pinned memory (whole: for all pieces) and makes our streams wait for the program's."""
        self._behind(lane)
        for _ in range(self._number if whole else min(DEPTH, self._number)):
            self._slots.append(Slot(lane))
            self._slots[-1].take(lane, self._source, self._target, together=self._together)

    def _behind(self, lane: Lane) -> None:
        self.lane = lane
        lane.reap()
        if self._source:
            lane.after(self._source.buffer, lane.down)
        if self._target:
            lane.after(self._target.buffer, lane.up)

    def run(self) -> None:
        """Runs the whole operation synchronously."""
        ahead = len(self._slots)
        for index in range(min(ahead, self._number)):
            self._download(index)
        for index in range(self._number):
            self._start(index, async_op=False)
            self.upload(index)
            if index + ahead < self._number:
                self._download(index + ahead)
        self.end(self._deadline)

    def started(self) -> list[backend.Work]:
        """Starts the host's operation for each downloaded piece. The caller calls upload() when one has ended, then end()."""
        for index in range(self._number):
            self._download(index)
        return [self._start(index, async_op=True) for index in range(self._number)]

    def on(self) -> AbstractContextManager[Any]:
        """A context manager with our device current, for a wait in any thread."""
        return self.lane.cuda.on(self.lane.device)

    def serve(self) -> None:
        """Prepares an internal thread."""
        self.lane.cuda.serve(self.lane.device)

    def landed(self) -> bool:
        """Whether all enqueued uploads have completed."""
        return all(not slot.busy or self.lane.cuda.came(slot.up.handle) for slot in self._slots)

    def _slot(self, index: int) -> Slot:
        return self._slots[index % len(self._slots)]

    def _download(self, index: int) -> None:
        slot = self._slot(index)
        if self._source is None or slot.source is None:
            return
        if slot.busy:
            self.lane.cuda.wait_event(self.lane.down, slot.up.handle)
        self.lane.pack(self._source.buffer, self._source.slices(index), slot.source.address)
        self.lane.record(slot.down, self.lane.down)

    def _start(self, index: int, *, async_op: bool) -> Any:
        slot = self._slot(index)
        if self._source is not None:
            self.lane.wait(slot.down, self._deadline, self.name)
        elif slot.busy:
            self.lane.wait(slot.up, self._deadline, self.name)
        source = self._source.pinned(index, slot.source) if self._source and slot.source else None
        target = self._target.pinned(index, slot.target) if self._target and slot.target else None
        return self._call(source, target, index, async_op=async_op, timeout=max(0.0, self._deadline - time.monotonic()))

    def upload(self, index: int) -> None:
        """Enqueues the upload of a piece whose host operation has ended."""
        slot = self._slot(index)
        if self._target is None or slot.target is None:
            return
        self.lane.unpack(self._target.buffer, self._target.slices(index), slot.target.address)
        self.lane.record(slot.up, self.lane.up)
        slot.busy = True

    def end(self, deadline: float) -> None:
        """Waits for the uploads, then frees the pinned memory."""
        for slot in self._slots:
            if slot.busy:
                self.lane.wait(slot.up, deadline, self.name)
            slot.busy = False
        self._slots = []
        self.lane.reap()

    def abandon(self) -> None:
        """After a failure, or if the result is dropped: enqueued copies keep their memory."""
        if self._slots:
            events = [event for slot in self._slots for event in (slot.down, slot.up)]
            self.lane.leave(events, (self._slots, self.touches))
            self._slots = []

    @property
    def writes(self) -> Buffer | None:
        return self._target.buffer if self._target else None


class StagedWork:
    """A pending asynchronous operation. The waiting thread uploads the result (core/interface/backend.py). See Held."""

    def __init__(self, operation: Operation, works: list[backend.Work],
                 fail: Callable[[Operation, BaseException], BaseException]) -> None:
        self.operation, self.writes = operation, operation.writes
        self._works, self._fail = works, fail
        self._settled, self.ended = 0, False
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            if self._error is not None:
                raise self._error
            if self.ended:
                return
            try:
                with self.operation.on():
                    self._finish(deadline)
            except BaseException as error:
                if type(error) is TimeoutError:  # the timeout of wait(), not of the operation, which continues
                    raise
                raise self._failed(error) from None

    def _finish(self, deadline: float | None) -> None:
        while self._settled < len(self._works):
            self._works[self._settled].wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            self._settle()
        try:
            self.operation.end(time.monotonic() + self.operation.timeout if deadline is None else deadline)
        except CollectiveTimeout as error:
            raise error if deadline is None else TimeoutError(str(error)) from None
        self.ended = True

    def _settle(self) -> None:
        self.operation.upload(self._settled)
        self._settled += 1

    def _failed(self, error: BaseException) -> BaseException:
        self._error = self._fail(self.operation, error)
        self.ended = True
        return self._error

    def done(self) -> bool:
        if not self.ended and self._lock.acquire(blocking=False):  # else another thread is waiting for completion
            try:
                with self.operation.on():
                    self.ended = self.ended or self._look()
            except BaseException as error:
                self._failed(error)
            finally:
                self._lock.release()
        return self.ended

    def _look(self) -> bool:
        while self._settled < len(self._works) and self._works[self._settled].done():
            self._works[self._settled].wait()
            self._settle()
        if self._settled < len(self._works) or not self.operation.landed():
            return False
        self.operation.end(time.monotonic())
        return True

    def source(self) -> tuple[int, int, int]:
        return self._works[0].source()

    def dropped(self) -> None:
        """Called when the caller drops its reference. If there is a result to write, a thread waits for it."""
        if self.ended or self.writes is None:
            return
        try:
            finish(self.operation.name, self._alone)
        except RuntimeError as error:
            self._failed(ResourceError(f"{self.operation.name}: its Work was dropped, and no thread can be started to write its "
                                       f"result: {error}"))

    def _alone(self) -> None:
        self.operation.serve()
        self.wait()

    def __del__(self) -> None:
        if not self.ended:
            self.operation.abandon()


class Held:
    """The caller's reference to a StagedWork."""

    __slots__ = ("_work", "done", "source", "wait")

    def __init__(self, work: StagedWork) -> None:
        self._work, self.done, self.source, self.wait = work, work.done, work.source, work.wait

    def __del__(self) -> None:
        self._work.dropped()

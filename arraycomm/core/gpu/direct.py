"""A device-to-device collective between ranks with CUDA IPC, in pieces through their areas. For a reduction, each rank's
device reduces that rank's part.

A sender copies a piece into its slot before a host synchronisation of all ranks. Peers read it afterwards, while the next piece
is copied into the other slot. No device waits for another process, which may die: the host waits for the copies and then
synchronises the ranks by a host operation. After the last synchronisation no peer reads this rank's area.
"""

from __future__ import annotations

from collections.abc import Callable

from ..arrays.types import DType, ReduceOp
from ..base.record import Record
from . import pieces
from .kernels import kernels
from .lane import Lane
from .operation import Operation, Side
from .reach import Reach
from .runtime import ON_DEVICE


class Moves(Record):
    """The data movement. giver: the only sender; None: block b comes from rank b or, with an op, from all ranks.

    gives, gets: elements of the blocks that a sender sends, and that this rank receives.
    """

    name: str
    rank: int
    giver: int | None
    op: ReduceOp | None
    gives: list[int]
    gets: list[int]


class Direct(Operation):
    """The operation on this rank. meet(index): all ranks are there, and mean the same; False: not all of them go this way, which
    is known at the first meeting. `ended`: they did."""

    def __init__(self, moves: Moves, reach: Reach, source: Side | None, target: Side | None, per_piece: int, number: int,
                 deadline: float, meet: Callable[[int], bool]) -> None:
        super().__init__(moves.name, source, target, number, deadline, lambda *_: None)
        self._moves, self._reach, self._per_piece, self._meet = moves, reach, per_piece, meet
        self._begun = self.ended = False

    def begin(self, lane: Lane, *, whole: bool) -> None:
        super()._behind(lane)
        self._filled, self._taken, self._begun = lane.event(), lane.event(), True

    def run(self) -> None:
        self._fill(0)
        for index in range(self._number):
            self._wait()
            if not self._meet(index):
                break
            self._take(index)
            if index + 1 < self._number:
                self._fill(index + 1)
        else:
            self._wait()
            self.ended = self._meet(self._number)
        self._begun = False

    def _fill(self, index: int) -> None:
        if self._source is not None:
            slot = self._reach.slot(self._moves.rank, index)
            self._lane.pack(self._source.buffer, self._source.slices(index), slot, ON_DEVICE)
            self._lane.record(self._filled, self._lane.down)

    def _take(self, index: int) -> None:
        if self._target is None:
            return
        buffer, moves, lane = self._target.buffer, self._moves, self._lane
        width, start = DType(buffer.dtype).itemsize, index * self._per_piece
        before = pieces.counts(moves.gives, index, self._per_piece)[: moves.rank] if len(moves.gives) > 1 else []
        for block, count in enumerate(pieces.counts(moves.gets, index, self._per_piece)):
            to, skipped = buffer.address + start * width, sum(before) * width
            if count and moves.op:
                slots = [self._reach.slot(rank, index) + skipped for rank in range(self._reach.size)]
                kernels(lane.cuda).reduce(to, slots, count, buffer.dtype, moves.op, lane.up, lane.device)
            elif count:
                slot = self._reach.slot(block if moves.giver is None else moves.giver, index)
                lane.cuda.copy(to, slot + skipped, count * width, ON_DEVICE, lane.up)
            start += moves.gets[block]
        self._lane.record(self._taken, self._lane.up)

    def _wait(self) -> None:
        for event in (self._filled, self._taken):
            self._lane.wait(event, self._deadline, self.name)

    def abandon(self) -> None:
        if self._begun:
            self._begun = False
            self._lane.leave([self._filled, self._taken], (self._reach, self.touches))

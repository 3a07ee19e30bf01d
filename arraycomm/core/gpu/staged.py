"""CUDA arrays over a communicator for host memory: they are staged through pinned memory.

Collectives are segmented into pieces (operation.py); each piece is an operation of any communicator for host arrays. In one
collective the arrays of all ranks are on devices or none is: the call signature has this, like shape and dtype. Messages are not
segmented, and each side may be on a device or on the host.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from ..arrays.buffer import Buffer
from ..arrays.dlpack import overlaps
from ..arrays.types import DType, ReduceOp
from ..base.errors import CollectiveMismatch, DeviceError, DistBackendError, ResourceError
from ..base.log import log
from ..interface.backend import Communicator, Work
from ..interface.kinds import Kind
from . import pieces
from .lane import LONGEST_NAP, PATIENCE, Lane
from .operation import Held, Operation, Side, StagedWork
from .pinned import Pool
from .runtime import Runtime, runtime, unavailable

_pools: list[Pool] = []  # one per process: pinned memory is shared by all devices and groups


def _pool(cuda: Runtime) -> Pool:
    if not _pools:
        _pools.append(Pool(cuda))
    return _pools[0]


class Staged:
    """See arraycomm.core.interface.backend.Mover for the contract. `timeout`: the default of its operations, in seconds.

    An asynchronous collective returns when its input has been copied to the host. The result is copied to the device in
    wait(), or in calls of done() until it returns True.
    """

    def __init__(self, host: Communicator, timeout: float) -> None:
        """Raises DistBackendError if CUDA's runtime or a device is missing. This does not abort the group."""
        missing = unavailable()
        if missing is not None:
            raise DistBackendError(f"arrays on GPUs are staged through CUDA's runtime: {missing}")
        self._host, self._timeout = host, timeout
        self._cuda = runtime()
        self._lanes: dict[int, Lane] = {}
        self._under_way: list[Callable[[], Any]] = []  # references to pending collectives, in call order
        self._works: weakref.WeakSet[StagedWork] = weakref.WeakSet()  # including messages

    def _lane(self, device: int) -> Lane:
        if device not in self._lanes:
            self._lanes[device] = Lane(self._cuda, _pool(self._cuda), device)
        return self._lanes[device]

    # ---- collectives ----

    def collective(self, kind: Kind, src: Buffer | None, dst: Buffer | None, op: ReduceOp | None = None, root: int = -1,
                   counts: Sequence[int] | None = None, receives: Sequence[int] | None = None, *, layout: int = 0,
                   timeout: float | None = None, async_op: bool = False) -> Work | None:
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        operation = self._operation(kind, src, dst, op, root, counts, receives, layout, deadline)
        self._settle_before(operation.touches)
        work = self._carry_out(operation, operation.touches[0].device_index, async_op, self._failed)
        if work is None:
            return None
        self._under_way.append(weakref.ref(work))
        return Held(work)

    def _operation(self, kind: Kind, src: Buffer | None, dst: Buffer | None, op: ReduceOp | None, root: int,
                   counts: Sequence[int] | None, receives: Sequence[int] | None, layout: int, deadline: float) -> Operation:
        touched = [buffer for buffer in (src, dst) if buffer is not None]
        cut = counts is None or not (kind.cuts and kind.joins)  # else the longest part of all ranks is unknown: one piece
        gives, gets = self._blocks(kind, touched, counts) if cut else ([touched[0].count], [touched[1].count])
        name, together, uneven = kind.name, not (kind.cuts or kind.joins), cut and counts is not None
        blocks = gives if len(gives) > len(gets) else gets
        longest, width = max(*gives, *gets), DType(touched[0].dtype).itemsize
        # For an all-reduce the host reads, writes and rereads the data: short pieces stay in its caches.
        at_a_time = pieces.PIECE_BYTES // 2 if together and op else pieces.PIECE_BYTES
        per_piece = pieces.elements(width, len(blocks), at_a_time) if cut else max(1, longest)
        number = pieces.number(longest, per_piece)
        sides = Side(src, gives, per_piece) if src else None, Side(dst, gets, per_piece) if dst else None

        def step(source: Buffer | None, target: Buffer | None, index: int, **more: Any) -> Any:
            now = pieces.counts(blocks, index, per_piece) if uneven else counts
            return self._host.collective(kind, source, target, op, root, now, receives,
                                         layout=piece_layout(layout, index, number), **more)

        return Operation(name, *sides, number, deadline, step, together=together)

    def _blocks(self, kind: Kind, touched: Sequence[Buffer], counts: Sequence[int] | None) -> tuple[list[int], list[int]]:
        """Elements of the input's and output's blocks, also on ranks without input or output."""
        if not (kind.cuts or kind.joins):
            return [touched[0].count], [touched[0].count]
        block = touched[0].count // self._host.size if kind.cuts and kind.joins else touched[-1 if kind.cuts else 0].count
        each = [block] * self._host.size if counts is None else list(counts)
        mine = [each[self._host.rank]]
        return each if kind.cuts else mine, each if kind.joins else mine

    def _carry_out(self, operation: Operation, device: int, async_op: bool,
                   fail: Callable[[Operation, BaseException], BaseException]) -> StagedWork | None:
        try:
            with self._cuda.on(device):
                self._cuda.refuse_capture(buffer.stream for buffer in operation.touches)
                operation.begin(self._lane(device), whole=async_op)
                if async_op:
                    work = StagedWork(operation, operation.started(), fail)
                    self._works.add(work)
                    return work
                operation.run()
        except DeviceError:  # nothing has been sent
            raise
        except BaseException as error:
            raise fail(operation, error) from error.__cause__
        return None

    def _settle_before(self, touches: Sequence[Buffer]) -> None:
        """Keeps call order: results that are still to be uploaded are written before a later operation reads them."""
        found = [(reference, reference()) for reference in self._under_way]
        alive = [(reference, work) for reference, work in found if work is not None and not work.ended]
        self._under_way = [reference for reference, _ in alive]
        for _, work in alive:
            if work.writes is not None and any(overlaps(buffer, work.writes) for buffer in touches):
                work.wait()

    def _failed(self, operation: Operation, error: BaseException) -> BaseException:
        """Aborts the group, because peers may wait for this rank's next piece. Returns the exception to raise."""
        self._host.abort(f"{operation.name} of arrays on a GPU: {type(error).__name__}: {error}")
        if not isinstance(error, CollectiveMismatch):
            return self._unsent(operation, error)
        operation.abandon()
        told = copy(error)
        told.args = (f"{error}. Here the array is on a GPU: in one call all ranks' arrays must be on GPUs, or none",)
        return told

    # ---- point to point ----

    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work | None:
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        work = self._carry_out(self._sending(src, peer, tag, deadline), src.device_index, async_op, self._unsent)
        return None if work is None else Held(work)

    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work:
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        work = self._carry_out(self._receiving(dst, peer, tag, deadline), dst.device_index, True, self._unsent)
        assert work is not None
        if not async_op:
            work.wait()
        return Held(work)

    def _sending(self, src: Buffer, peer: int, tag: int, deadline: float) -> Operation:
        return Operation("send", Side(src, [src.count], max(1, src.count)), None, 1, deadline,
                         lambda source, _target, _index, **more: self._host.send(source, peer, tag, **more))

    def _receiving(self, dst: Buffer, peer: int | None, tag: int, deadline: float) -> Operation:
        return Operation("recv", None, Side(dst, [dst.count], max(1, dst.count)), 1, deadline,
                         lambda _source, target, _index, **more: self._host.recv(target, peer, tag, **more))

    def _unsent(self, operation: Operation, error: BaseException) -> BaseException:
        """Returns the exception to raise, with the operation's name in a CUDA error. A failed message leaves the group usable."""
        operation.abandon()
        if type(error) in (DistBackendError, ResourceError):
            return type(error)(f"{operation.name} of an array on GPU {operation.touches[0].device_index}: {error}")
        return error

    # ---- close ----

    def close(self) -> None:
        """Called after the host communicator's close(), which ends all works. Waits briefly for pending device work."""
        deadline = time.monotonic() + PATIENCE
        while late := [work for work in list(self._works) if not work.done()]:
            if time.monotonic() > deadline:
                log().warning("%s has not ended on its device; what it uses there is not freed", late[0].operation.name)
                break
            time.sleep(LONGEST_NAP)
        closing = [lane for lane in self._lanes.values() if not any(work.operation.lane is lane for work in late)]
        for lane in closing:
            lane.close()
        self._lanes.clear()


def piece_layout(layout: int, index: int, number: int) -> int:
    """The layout of the call signature: the host's layout, that it is staged, the piece's index and the number of pieces."""
    return hash((0x57A6ED, layout, index, number)) & 0xFFFFFFFF | 1

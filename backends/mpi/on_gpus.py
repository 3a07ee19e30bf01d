"""CUDA arrays over an MPI library that takes them: its collectives read and write the program's own arrays, where they compute
what the engine does, and its messages move those that are not short. Everything else is staged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from arraycomm._engine import ffi, lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DType, ReduceOp
from arraycomm.core.gpu.lane import Lane
from arraycomm.core.gpu.operation import Operation, Side, Slot
from arraycomm.core.gpu.staged import Staged
from arraycomm.core.interface.kinds import Kind

_MOST = (2**31 - 1) // 2  # elements of an array: a complex number is two of MPI's
# Reductions that are MPI's own in mpi_types.c: dtypes, then the operations of each.
_OWN = {**dict.fromkeys(("int32", "uint32", "int64", "uint64"), ("sum", "product", "min", "max", "band", "bor", "bxor")),
        "float32": ("sum", "product"), "float64": ("sum", "product"), "complex64": ("sum",), "complex128": ("sum",)}
_BUFFERED = 16 << 10  # bytes of a message: one up to here is staged, because programs rely on its buffering
_forever: list[Any] = []  # arrays of failed operations, which MPI may still use


class _Direct(Operation):
    """Waits until the device has come to the arrays, and gives them to the library."""

    def begin(self, lane: Lane, *, whole: bool) -> None:
        self._behind(lane)
        self._slots.append(Slot(lane))
        for event, stream in ((self._slots[0].down, lane.down), (self._slots[0].up, lane.up)):
            lane.record(event, stream)
            lane.wait(event, self._deadline, self.name)

    def _start(self, index: int, *, async_op: bool) -> Any:
        source, target = (side.buffer if side else None for side in (self._source, self._target))
        return self._call(source, target, index, async_op=async_op, timeout=max(0.0, self._deadline - time.monotonic()))


class _Message(_Direct):
    """Gives the array to the library. A receive has pinned memory too, for a message that comes from the host."""

    def begin(self, lane: Lane, *, whole: bool) -> None:
        contexts = lane.cuda.contexts()
        push, pop = contexts.entries()
        lib.acomm_mpi_push, lib.acomm_mpi_pop = ffi.cast("int (*)(uintptr_t)", push), ffi.cast("int (*)(uintptr_t *)", pop)
        self._array = ffi.new("acomm_gpu_array *", {"address": self.touches[0].address, "context": contexts.of(lane.device)})
        super().begin(lane, whole=whole)
        self._slots[0].take(lane, None, self._target, together=False)

    def _start(self, index: int, *, async_op: bool) -> Any:
        pinned, block = None, self._slots[0].target
        if self._target and block:
            pinned = self._target.pinned(index, block)
        return self._call(self._array, self.touches[0], pinned, async_op=async_op,
                          timeout=max(0.0, self._deadline - time.monotonic()))

    def upload(self, index: int) -> None:
        if self._array.state != lib.ACOMM_GPU_ENDED:
            super().upload(index)

    def abandon(self) -> None:
        if self._slots and self._array.state == lib.ACOMM_GPU_GIVEN:
            _forever.append(self.touches)
        super().abandon()

    @property
    def writes(self) -> Buffer | None:
        """Of a send too: a thread waits for it if its Work is dropped, and keeps the array after a failure."""
        return self.touches[0]


class OnGpus(Staged):
    """See Staged."""

    _host: Any  # an MpiCommunicator

    def _operation(self, kind: Kind, src: Buffer | None, dst: Buffer | None, op: ReduceOp | None, root: int,
                   counts: Sequence[int] | None, receives: Sequence[int] | None, layout: int, deadline: float) -> Operation:
        touched = [buffer for buffer in (src, dst) if buffer is not None]
        elements = touched[-1 if kind.cuts else 0].count * (1 if kind.cuts == kind.joins else self._host.size)
        own = op is None or (kind.name != "exscan" and op.name in _OWN.get(DType(touched[0].dtype).label, ()))
        if not self._host.takes_gpus or counts is not None or elements > _MOST or not own:
            return super()._operation(kind, src, dst, op, root, counts, receives, layout, deadline)
        lib.acomm_mpi_use_device = ffi.cast("int (*)(int)", self._cuda.address("cudaSetDevice"))
        # As the engine takes it (acomm.h): the reduction's number and the device in one.
        asked = ReduceOp("", (op.code if op else 0) + lib.ACOMM_ON_GPU * (1 + touched[0].device_index))
        source, target = (None if buffer is None else Side(buffer, [buffer.count], 1) for buffer in (src, dst))
        return _Direct(kind.name, source, target, 1, deadline, lambda given, taken, _index, **more: self._host.collective(
            kind, given, taken, asked, root, layout=layout, **more))

    def _sending(self, src: Buffer, peer: int, tag: int, deadline: float) -> Operation:
        if not self._host.carries_gpus or peer == self._host.rank or src.nbytes <= _BUFFERED or src.count > _MOST:
            return super()._sending(src, peer, tag, deadline)
        return _Message("send", Side(src, [src.count], src.count), None, 1, deadline,
                        lambda array, buffer, pinned, **more: self._host.carry(array, buffer, pinned, peer, tag, **more))

    def _receiving(self, dst: Buffer, peer: int | None, tag: int, deadline: float) -> Operation:
        if not self._host.carries_gpus or peer == self._host.rank or dst.nbytes <= _BUFFERED:
            return super()._receiving(dst, peer, tag, deadline)
        return _Message("recv", None, Side(dst, [dst.count], dst.count), 1, deadline,
                        lambda array, buffer, pinned, **more: self._host.carry(array, buffer, pinned, peer, tag, **more))

    def _failed(self, operation: Operation, error: BaseException) -> BaseException:
        if isinstance(operation, _Direct):
            _forever.append(operation.touches)
        return super()._failed(operation, error)

"""Operations of NcclCommunicator: they enqueue NCCL calls on a stream and return a Work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DeviceType, DType, ReduceOp
from arraycomm.core.gpu.staged import Staged
from arraycomm.core.interface.backend import Communicator, Work
from arraycomm.core.interface.kinds import Kind

from .declarations import version_text
from .grouped import Grouped
from .library import Library
from .reductions import UINT8, Native, native

if TYPE_CHECKING:
    from .work import NcclWork

_CPU = int(DeviceType.CPU)


class BesideHost:
    """The methods that a communicator over NCCL delegates to the same ranks' communicator over the CPU."""

    host: Communicator

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Work | None:
        """A barrier of the ranks, not of their GPUs: enqueued work may still run."""
        return self.host.barrier(timeout=timeout, async_op=async_op)

    def symmetric(self, nbytes: int, *, timeout: float | None = None) -> tuple[int, int, int] | None:
        return self.host.symmetric(nbytes, timeout=timeout)

    def expose(self, buffer: Buffer) -> None:
        return None

    def gone(self) -> frozenset[int]:
        return self.host.gone()


class Operations(BesideHost):
    """See NcclCommunicator. The arrays of a call are all on the GPU or all in host memory."""

    timeout: float

    def __init__(self, nccl: Library, host: Communicator) -> None:
        self.nccl, self.host = nccl, host
        self._grouped = Grouped(nccl, host.rank, host.size)
        self._staged: Staged | None = None  # through host memory; made by the first operation that NCCL lacks
        self._natives: dict[tuple[ReduceOp, int], Native] = {}

    def _run(self, what: str, src: Buffer | None, dst: Buffer | None, timeout: float | None, async_op: bool,
             call: Callable[..., int], *arguments: Any) -> NcclWork | None:
        """call(*arguments, comm, stream) enqueues and returns NCCL's code."""
        raise NotImplementedError

    def _how(self, op: ReduceOp, src: Buffer) -> Native:
        """Looks up and caches a reduction. TypeError for one that NCCL lacks, before anything is sent."""
        found = native(self.nccl, op, src.dtype, alone=self.host.size == 1)
        if found is None:
            raise TypeError(f"NCCL {version_text(self.nccl.version)} has no {op} of {DType(src.dtype).label}; reduce another "
                            "dtype, or a copy in host memory")
        if not found.scalar:  # factors are not cached: there is no limit to their number
            self._natives[op, src.dtype] = found
        return found

    def _scaled(self, how: Native, call: Callable[..., int]) -> Callable[..., int]:
        """Wraps the call: its fifth argument becomes an NCCL operator made for the factor."""
        call = self._grouped.scaled_alone(call, len(how.scalar))

        def scaled(*arguments: Any) -> int:
            op, comm = self.nccl.ffi.new("int *"), arguments[-2]
            code = self.nccl.ncclRedOpCreatePreMulSum(op, self.nccl.ffi.from_buffer(how.scalar), how.dtype, 1, comm)
            if code:
                return int(code)
            try:
                return call(*arguments[:4], int(op[0]), *arguments[5:])
            finally:
                self.nccl.ncclRedOpDestroy(op[0], comm)

        return scaled

    # For each kind: the function to enqueue, and its arguments before the communicator and the stream.

    def _all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, root: int, *_: Any) -> tuple[Any, ...]:
        how = self._natives.get((op, src.dtype)) or self._how(op, src)
        call = self._scaled(how, self.nccl.ncclAllReduce) if how.scalar else self.nccl.ncclAllReduce
        return call, src.address, dst.address, src.count * how.elements, how.dtype, how.op

    def _reduce(self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, *_: Any) -> tuple[Any, ...]:
        how = self._natives.get((op, src.dtype)) or self._how(op, src)
        call = self._scaled(how, self.nccl.ncclReduce) if how.scalar else self.nccl.ncclReduce
        return call, src.address, dst.address if dst else 0, src.count * how.elements, how.dtype, how.op, root

    def _reduce_scatter(self, src: Buffer, dst: Buffer, op: ReduceOp, root: int, counts: Sequence[int] | None,
                        *_: Any) -> tuple[Any, ...]:
        how = self._natives.get((op, src.dtype)) or self._how(op, src)
        even = counts is None or len(set(counts)) == 1
        plain = self.nccl.ncclReduceScatter if even else self._grouped.reduce_scatter
        call = self._scaled(how, plain) if how.scalar else plain
        if even:
            return call, src.address, dst.address, dst.count * how.elements, how.dtype, how.op
        return call, src, dst, counts, how, how.op, DType(src.dtype).itemsize

    def _broadcast(self, src: Buffer | None, dst: Buffer, op: None, root: int, *_: Any) -> tuple[Any, ...]:
        return self.nccl.ncclBroadcast, src.address if src else dst.address, dst.address, dst.nbytes, UINT8, root

    def _all_gather(self, src: Buffer, dst: Buffer, op: None, root: int, counts: Sequence[int] | None,
                    *_: Any) -> tuple[Any, ...]:
        if counts is None or len(set(counts)) == 1:
            return self.nccl.ncclAllGather, src.address, dst.address, src.nbytes, UINT8
        return self._grouped.all_gather, src, dst, [count * DType(src.dtype).itemsize for count in counts]

    def _gather(self, src: Buffer, dst: Buffer | None, op: None, root: int, *_: Any) -> tuple[Any, ...]:
        return self._grouped.gather, src, dst, root

    def _scatter(self, src: Buffer | None, dst: Buffer, op: None, root: int, *_: Any) -> tuple[Any, ...]:
        return self._grouped.scatter, src, dst, root

    def _all_to_all(self, src: Buffer, dst: Buffer, op: None, root: int, sends: Sequence[int] | None,
                    receives: Sequence[int] | None) -> tuple[Any, ...]:
        return self._grouped.all_to_all, src, dst, sends, receives

    def collective(self, kind: Kind, src: Buffer | None, dst: Buffer | None, op: ReduceOp | None = None, root: int = -1,
                   counts: Sequence[int] | None = None, receives: Sequence[int] | None = None, *, layout: int = 0,
                   timeout: float | None = None, async_op: bool = False) -> Work | None:
        some = src if src is not None else dst
        assert some is not None  # an operation has at least one buffer
        if some.device_type == _CPU:
            return self.host.collective(kind, src, dst, op, root, counts, receives, layout=layout, timeout=timeout,
                                        async_op=async_op)
        describe = getattr(self, f"_{kind.name}", None)
        if describe is None:  # NCCL has no equivalent
            self._staged = self._staged or Staged(self.host, self.timeout)
            return self._staged.collective(kind, src, dst, op, root, counts, receives, layout=layout, timeout=timeout,
                                           async_op=async_op)
        return self._run(kind.name, src, dst, timeout, async_op, *describe(src, dst, op, root, counts, receives))

    # ---- point to point ----

    @staticmethod
    def _check_message(peer: int | None, tag: int) -> None:
        """ValueError for a message that NCCL cannot match by tag or source: the wrong receive would get it."""
        if tag or peer is None:
            raise ValueError("NCCL's messages have no tags and no receive from any source: use tag 0 and name the source, or "
                             "send a copy in host memory")

    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work | None:
        if src.device_type == _CPU:
            return self.host.send(src, peer, tag, timeout=timeout, async_op=async_op)
        self._check_message(peer, tag)
        return self._run("send", src, None, timeout, async_op, self.nccl.ncclSend, src.address, src.nbytes, UINT8, peer)

    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work:
        if dst.device_type == _CPU:
            return self.host.recv(dst, peer, tag, timeout=timeout, async_op=async_op)
        self._check_message(peer, tag)
        assert peer is not None
        work = self._run("recv", None, dst, timeout, True, self.nccl.ncclRecv, dst.address, dst.nbytes, UINT8, peer)
        assert work is not None  # async_op is True
        work.peer = (peer, tag, dst.nbytes)
        if not async_op:
            work.wait()
        return work


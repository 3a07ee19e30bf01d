"""Operations of NcclCommunicator. One method each: arguments down, a place on a stream back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arraycomm.core.backend import Communicator, Work
from arraycomm.core.buffer import Buffer
from arraycomm.core.typed import TYPE_CHECKING, Any
from arraycomm.core.types import DeviceType, DType, ReduceOp

from .declarations import version_text
from .grouped import Grouped
from .library import Library
from .reductions import UINT8, Native, native

if TYPE_CHECKING:
    from typing import TypeVar

    from .work import NcclWork

    _Method = TypeVar("_Method", bound=Callable[..., Any])

_CPU = int(DeviceType.CPU)


def _or_by_host(method: _Method) -> _Method:
    """The method is for arrays on the GPU; those in host memory go over the communicator there."""
    name = method.__name__

    def by_place(self: Operations, first: Any, second: Any, *more: Any, **named: Any) -> Work | None:
        if (second if first is None else first).device_type == _CPU:  # what only the root gives comes first
            return getattr(self.host, name)(first, second, *more, **named)
        return method(self, first, second, *more, **named)

    return by_place  # type: ignore[return-value]


class Operations:
    """See NcclCommunicator. The arrays of a call are all on the GPU or all in host memory."""

    def __init__(self, nccl: Library, host: Communicator) -> None:
        self.nccl, self.host = nccl, host
        self._grouped = Grouped(nccl, host.rank, host.size)
        self._natives: dict[tuple[ReduceOp, int], Native] = {}

    def _run(self, what: str, src: Buffer | None, dst: Buffer | None, timeout: float | None, async_op: bool,
             call: Callable[..., int], *arguments: Any) -> NcclWork | None:
        """call(*arguments, comm, stream) enqueues, and gives NCCL's code."""
        raise NotImplementedError

    # ---- reductions ----

    def _how(self, op: ReduceOp, src: Buffer) -> Native:
        """What is not among the natives yet. TypeError for what NCCL does not have, before anything is sent."""
        found = native(self.nccl, op, src.dtype, alone=self.host.size == 1)
        if found is None:
            raise TypeError(f"NCCL {version_text(self.nccl.version)} has no {op} of {DType(src.dtype).label}; reduce another "
                            "dtype, or a copy in host memory")
        if not found.scalar:  # factors are without number
            self._natives[op, src.dtype] = found
        return found

    def _scaled(self, how: Native, call: Callable[..., int]) -> Callable[..., int]:
        """The call with an operator of NCCL's made for the factor, as its fifth argument."""
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

    @_or_by_host
    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, *, layout: int = 0, timeout: float | None = None,
                   async_op: bool = False) -> Work | None:
        how = self._natives.get((op, src.dtype)) or self._how(op, src)
        call = self._scaled(how, self.nccl.ncclAllReduce) if how.scalar else self.nccl.ncclAllReduce
        return self._run("all_reduce", src, dst, timeout, async_op, call, src.address,
                         dst.address, src.count * how.elements, how.dtype, how.op)

    @_or_by_host
    def reduce(self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, *, layout: int = 0,
               timeout: float | None = None, async_op: bool = False) -> Work | None:
        how = self._natives.get((op, src.dtype)) or self._how(op, src)
        call = self._scaled(how, self.nccl.ncclReduce) if how.scalar else self.nccl.ncclReduce
        return self._run("reduce", src, dst, timeout, async_op, call, src.address,
                         dst.address if dst else 0, src.count * how.elements, how.dtype, how.op, root)

    @_or_by_host
    def reduce_scatter(self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Sequence[int] | None = None, *,
                       layout: int = 0, timeout: float | None = None, async_op: bool = False) -> Work | None:
        how = self._natives.get((op, src.dtype)) or self._how(op, src)
        even = counts is None or len(set(counts)) == 1
        plain = self.nccl.ncclReduceScatter if even else self._grouped.reduce_scatter
        call = self._scaled(how, plain) if how.scalar else plain
        if even:
            return self._run("reduce_scatter", src, dst, timeout, async_op, call,
                             src.address, dst.address, dst.count * how.elements, how.dtype, how.op)
        return self._run("reduce_scatter", src, dst, timeout, async_op, call,
                         src, dst, counts, how, how.op, DType(src.dtype).itemsize)

    # ---- movement: bytes ----

    @_or_by_host
    def broadcast(self, src: Buffer | None, dst: Buffer, root: int, *, layout: int = 0, timeout: float | None = None,
                  async_op: bool = False) -> Work | None:
        return self._run("broadcast", src, dst, timeout, async_op, self.nccl.ncclBroadcast, src.address if src else dst.address,
                         dst.address, dst.nbytes, UINT8, root)

    @_or_by_host
    def all_gather(self, src: Buffer, dst: Buffer, counts: Sequence[int] | None = None, *, layout: int = 0,
                   timeout: float | None = None, async_op: bool = False) -> Work | None:
        if counts is None or len(set(counts)) == 1:
            return self._run("all_gather", src, dst, timeout, async_op, self.nccl.ncclAllGather, src.address, dst.address,
                             src.nbytes, UINT8)
        sizes = [count * DType(src.dtype).itemsize for count in counts]
        return self._run("all_gather", src, dst, timeout, async_op, self._grouped.all_gather, src, dst, sizes)

    @_or_by_host
    def gather(self, src: Buffer, dst: Buffer | None, root: int, *, layout: int = 0, timeout: float | None = None,
               async_op: bool = False) -> Work | None:
        return self._run("gather", src, dst, timeout, async_op, self._grouped.gather, src, dst, root)

    @_or_by_host
    def scatter(self, src: Buffer | None, dst: Buffer, root: int, *, layout: int = 0, timeout: float | None = None,
                async_op: bool = False) -> Work | None:
        return self._run("scatter", src, dst, timeout, async_op, self._grouped.scatter, src, dst, root)

    @_or_by_host
    def all_to_all(self, src: Buffer, dst: Buffer, send_counts: Sequence[int] | None = None,
                   recv_counts: Sequence[int] | None = None, *, layout: int = 0, timeout: float | None = None,
                   async_op: bool = False) -> Work | None:
        return self._run("all_to_all", src, dst, timeout, async_op, self._grouped.all_to_all, src, dst, send_counts, recv_counts)

    # ---- point to point ----

    @staticmethod
    def _check_message(peer: int | None, tag: int) -> None:
        """ValueError for a message that NCCL cannot match: it would reach the wrong receive."""
        if tag or peer is None:
            raise ValueError("NCCL's messages have no tags and no receive from any source: use tag 0 and name the source, or "
                             "send a copy in host memory")

    @_or_by_host
    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work | None:
        self._check_message(peer, tag)
        return self._run("send", src, None, timeout, async_op, self.nccl.ncclSend, src.address, src.nbytes, UINT8, peer)

    @_or_by_host
    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work:
        self._check_message(peer, tag)
        assert peer is not None
        work = self._run("recv", None, dst, timeout, True, self.nccl.ncclRecv, dst.address, dst.nbytes, UINT8, peer)
        assert work is not None  # async_op is True
        work.peer = (peer, tag, dst.nbytes)
        if not async_op:
            work.wait()
        return work


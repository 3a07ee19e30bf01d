"""NcclCommunicator: the Communicator over NCCL. One method per operation: arguments down, a place on a stream back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from arraycomm.core.backend import Communicator, Work
from arraycomm.core.buffer import Buffer
from arraycomm.core.cuda.runtime import Runtime
from arraycomm.core.errors import (
    Aborted,
    CollectiveTimeout,
    DeviceError,
    DistBackendError,
    DistError,
    PeerLost,
    ResourceError,
)
from arraycomm.core.log import log
from arraycomm.core.types import DeviceType, DType, ReduceOp

from .canary import Canary
from .declarations import version_text
from .errors import IN_PROGRESS
from .flight import Flight, watcher
from .grouped import Grouped
from .handle import Handle
from .reductions import UINT8, Native, native
from .work import NcclWork

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

_CPU = int(DeviceType.CPU)
_PATIENCE = 5.0  # s that close() waits for peers that have something under way
_GRACE = 0.25  # s for what is under way when a peer leaves: it may have done its part


_thread = threading.local()  # .batch: the communicator whose batch it is in, as NCCL has one group of calls a thread


def refuse_in_batch(name: str, of: NcclCommunicator | None = None) -> None:
    """ValueError within a batch of another communicator: NCCL would put off what is called to that batch's end."""
    open_ = getattr(_thread, "batch", None)
    if open_ is not None and open_ is not of:
        raise ValueError(f"group {name!r} within batch() of group {open_.name!r}: NCCL would begin its call when that "
                         "batch ends; call it before the batch or behind it")


def _fleeting(buffer: Buffer | None) -> bool:
    return buffer is not None and buffer.fleeting


class NcclCommunicator:
    """One rank's end of a group whose arrays are on GPUs. See arraycomm.core.backend for the contract.

    Operations go on the stream on which the array's library works, and the host does not wait for them; asynchronous ones on a
    stream of the communicator's own. `host` is a communicator of the same ranks over the CPU: it carries what is in
    host memory, and tells when a peer is lost.
    """

    def __init__(self, handle: Handle, cuda: Runtime, host: Communicator, device: int, timeout: float,
                 options: Mapping[str, Any], *, priority: bool) -> None:
        """Takes over the handle and `host`. priority: its own stream is of high priority."""
        self.rank, self.size, self.name, self.timeout = host.rank, host.size, host.name, timeout
        self.host, self.device = host, device
        self.shortcut = host.shortcut  # which declines what is not in host memory
        self.closed = False
        self.failure: DistError | None = None
        self.lock = threading.RLock()
        self.handle, self.nccl, self.cuda, self.options, self.priority = handle, handle.nccl, cuda, options, priority
        self._grouped = Grouped(self.nccl, self.rank, self.size)
        self._flight = Flight(cuda, device, handle.who)
        self._stream = cuda.stream(device, high_priority=priority)
        self._canary = Canary(host)
        self._batch: list[NcclWork] | None = None
        watcher.watch(self)

    # ---- enqueueing ----

    def _run(self, what: str, call: Callable[[int, int], int], src: Buffer | None, dst: Buffer | None, timeout: float | None,
             async_op: bool) -> NcclWork | None:
        """call(comm, stream) enqueues, and gives NCCL's code."""
        with self.lock:
            try:
                with self.cuda.on(self.device):
                    work = self._enqueue(what, call, src, dst, self.timeout if timeout is None else timeout, async_op)
            except (DistBackendError, ResourceError) as error:  # of CUDA's: the peers must not wait for this rank
                raise self._broken(error) from None
        if not watcher.awake:
            watcher.wake()
        return work if async_op else None

    def _enqueue(self, what: str, call: Callable[[int, int], int], src: Buffer | None, dst: Buffer | None, seconds: float,
                 async_op: bool) -> NcclWork:
        self._check_ready()
        if self._batch is not None and not async_op:
            raise ValueError(f"{what} within batch() needs async_op=True: its result is there when the batch has ended")
        theirs = self._streams_of(src, dst)
        self.cuda.refuse_capture(theirs)
        stream = self._stream if async_op else theirs[0]
        for other in theirs:
            if other != stream:
                self.cuda.order(after=other, stream=stream, device=self.device)
        work = NcclWork(self._flight, what, theirs[0], time.monotonic() + seconds,
                        (src, dst) if async_op or _fleeting(src) or _fleeting(dst) else ())
        code = call(self.handle.comm, stream)
        if self._batch is not None:
            self._batch.append(work)
            if code not in (0, IN_PROGRESS):
                raise self._broken(self.handle.error(code, what))
            return work
        self._settle(code, what, seconds)
        self._flight.enqueued([work], stream)
        if not async_op and len(theirs) > 1:
            self.cuda.order(after=stream, stream=theirs[1], device=self.device)
        return work

    def _streams_of(self, src: Buffer | None, dst: Buffer | None) -> list[int]:
        """On which the buffers are in order, each once."""
        streams = []
        for buffer in (dst, src):
            if buffer is None:
                continue
            if buffer.device_index != self.device:
                raise DeviceError(f"group {self.name!r} works on cuda:{self.device}, and the array is on "
                                  f"cuda:{buffer.device_index}: a rank has one device, chosen when the group is made")
            if buffer.stream not in streams:
                streams.append(buffer.stream)
        return streams

    def _settle(self, code: int, what: str, seconds: float) -> None:
        try:
            self.handle.settle(code, what, seconds)
        except DistError as error:
            raise self._broken(error) from None

    def _check_ready(self) -> None:
        """Raises why nothing can be enqueued any more, or now. Under the lock."""
        refuse_in_batch(self.name, self)
        if self.failure is None and not self.closed:
            error = self._canary.error()
            code = 0 if error else self.handle.failed()
            if error is None and code:
                error = self.handle.error(code, self._flight.oldest() or "an operation that seemed to have ended")
            if error is None:
                return
            self._broken(error)
        if self.failure is not None:
            raise self._broken(self.failure)
        raise Aborted(f"group {self.name!r} is closed; make a new one with arraycomm.init() or split()")

    def check_failure(self) -> None:
        """While a call is polled: raises what has befallen the group meanwhile, from any thread."""
        if self.failure is not None:
            raise self.failure
        error = self._canary.error()
        if error is not None:
            raise error

    # ---- failure ----

    def _broken(self, error: DistError) -> DistError:
        """Keeps the first failure, tells the peers, and ends what is under way; the error to raise. Any thread."""
        if self.failure is None:
            self.failure = error
            self._flight.fail(error)
            self.host.abort(str(error))
            log().warning("group %r failed; what it had under way on the GPU is not complete: %s", self.name, error)
        if self.lock.acquire(blocking=False):  # else who holds it finds the failure when he looks
            try:
                if self._batch is None:  # a group of calls that has begun must end before
                    self.handle.abort()
            finally:
                self.lock.release()
        return self.failure

    def tick(self) -> bool:
        """From the watcher's thread: whether something is under way."""
        if self.closed:
            return False
        if self.failure is not None:
            self._broken(self.failure)  # the handle may still be there
            return self.handle.comm != 0
        try:
            if self._flight:
                self.cuda.serve(self.device)
            first = self._flight.reap()
            if first is not None:
                self._look_after(first)
        except DistError as error:
            self._broken(error)
        return first is not None if self.failure is None else self.handle.comm != 0

    def _look_after(self, first: NcclWork) -> None:
        """Raises what keeps the first work from ending."""
        now = time.monotonic()
        error = self._canary.error()
        if error is not None:
            if not isinstance(error, PeerLost) or now > self._canary.since + _GRACE:
                raise error
        elif now > first.deadline:
            raise CollectiveTimeout(f"{self.handle.who}: {first.what} has not ended within its timeout; an array that it was "
                                    "writing may hold partial data")
        if self.lock.acquire(blocking=False):
            try:
                code = self.handle.failed()
                if code:
                    raise self.handle.error(code, self._flight.oldest() or first.what)
            finally:
                self.lock.release()

    # ---- reductions ----

    def _how(self, op: ReduceOp, src: Buffer) -> Native | None:
        """None: the array is on the host. TypeError for what NCCL does not have, before anything is sent."""
        if src.device_type == _CPU:
            return None
        found = native(self.nccl, op, src.dtype)
        if found is None:
            raise TypeError(f"NCCL {version_text(self.nccl.version)} has no {op} of {DType(src.dtype).label}; reduce another "
                            "dtype, or a copy in host memory")
        return found

    def _reducing(self, how: Native, call: Callable[[int], int], comm: int) -> int:
        """call(op), with an operator of NCCL's made for it where it needs one."""
        if not how.scalar:
            return call(how.op)
        op = self.nccl.ffi.new("int *")
        scalar = self.nccl.ffi.from_buffer(how.scalar)
        code = self.nccl.ncclRedOpCreatePreMulSum(op, scalar, how.dtype, 1, comm)
        if code:
            return int(code)
        try:
            return call(int(op[0]))
        finally:
            self.nccl.ncclRedOpDestroy(op[0], comm)

    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, *, layout: int = 0, timeout: float | None = None,
                   async_op: bool = False) -> Work | None:
        how = self._how(op, src)
        if how is None:
            return self.host.all_reduce(src, dst, op, layout=layout, timeout=timeout, async_op=async_op)
        count = src.count * how.elements
        return self._run("all_reduce", lambda comm, stream: self._reducing(
            how, lambda code: self.nccl.ncclAllReduce(src.address, dst.address, count, how.dtype, code, comm, stream), comm),
            src, dst, timeout, async_op)

    def reduce(self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, *, layout: int = 0,
               timeout: float | None = None, async_op: bool = False) -> Work | None:
        how = self._how(op, src)
        if how is None:
            return self.host.reduce(src, dst, op, root, layout=layout, timeout=timeout, async_op=async_op)
        count, to = src.count * how.elements, dst.address if dst else 0
        return self._run("reduce", lambda comm, stream: self._reducing(
            how, lambda code: self.nccl.ncclReduce(src.address, to, count, how.dtype, code, root, comm, stream), comm),
            src, dst, timeout, async_op)

    def reduce_scatter(self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Sequence[int] | None = None, *,
                       layout: int = 0, timeout: float | None = None, async_op: bool = False) -> Work | None:
        how = self._how(op, src)
        if how is None:
            return self.host.reduce_scatter(src, dst, op, counts, layout=layout, timeout=timeout, async_op=async_op)
        if counts is None or len(set(counts)) == 1:
            count = dst.count * how.elements
            return self._run("reduce_scatter", lambda comm, stream: self._reducing(
                how, lambda code: self.nccl.ncclReduceScatter(src.address, dst.address, count, how.dtype, code, comm, stream),
                comm), src, dst, timeout, async_op)
        width = DType(src.dtype).itemsize
        return self._run("reduce_scatter", lambda comm, stream: self._reducing(
            how, lambda code: self._grouped.reduce_scatter(src, dst, counts, width, how, code, comm, stream), comm),
            src, dst, timeout, async_op)

    # ---- movement: bytes ----

    def broadcast(self, src: Buffer | None, dst: Buffer, root: int, *, layout: int = 0, timeout: float | None = None,
                  async_op: bool = False) -> Work | None:
        if dst.device_type == _CPU:
            return self.host.broadcast(src, dst, root, layout=layout, timeout=timeout, async_op=async_op)
        start = src.address if src else dst.address
        return self._run("broadcast", lambda comm, stream: self.nccl.ncclBroadcast(
            start, dst.address, dst.nbytes, UINT8, root, comm, stream), src, dst, timeout, async_op)

    def all_gather(self, src: Buffer, dst: Buffer, counts: Sequence[int] | None = None, *, layout: int = 0,
                   timeout: float | None = None, async_op: bool = False) -> Work | None:
        if src.device_type == _CPU:
            return self.host.all_gather(src, dst, counts, layout=layout, timeout=timeout, async_op=async_op)
        if counts is None or len(set(counts)) == 1:
            return self._run("all_gather", lambda comm, stream: self.nccl.ncclAllGather(
                src.address, dst.address, src.nbytes, UINT8, comm, stream), src, dst, timeout, async_op)
        sizes = [count * DType(src.dtype).itemsize for count in counts]
        return self._run("all_gather", lambda comm, stream: self._grouped.all_gather(src, dst, sizes, comm, stream), src, dst,
                         timeout, async_op)

    def gather(self, src: Buffer, dst: Buffer | None, root: int, *, layout: int = 0, timeout: float | None = None,
               async_op: bool = False) -> Work | None:
        if src.device_type == _CPU:
            return self.host.gather(src, dst, root, layout=layout, timeout=timeout, async_op=async_op)
        return self._run("gather", lambda comm, stream: self._grouped.gather(src, dst, root, comm, stream), src, dst, timeout,
                         async_op)

    def scatter(self, src: Buffer | None, dst: Buffer, root: int, *, layout: int = 0, timeout: float | None = None,
                async_op: bool = False) -> Work | None:
        if dst.device_type == _CPU:
            return self.host.scatter(src, dst, root, layout=layout, timeout=timeout, async_op=async_op)
        return self._run("scatter", lambda comm, stream: self._grouped.scatter(src, dst, root, comm, stream), src, dst, timeout,
                         async_op)

    def all_to_all(self, src: Buffer, dst: Buffer, send_counts: Sequence[int] | None = None,
                   recv_counts: Sequence[int] | None = None, *, layout: int = 0, timeout: float | None = None,
                   async_op: bool = False) -> Work | None:
        if src.device_type == _CPU:
            return self.host.all_to_all(src, dst, send_counts, recv_counts, layout=layout, timeout=timeout, async_op=async_op)
        return self._run("all_to_all", lambda comm, stream: self._grouped.all_to_all(
            src, dst, send_counts, recv_counts, comm, stream), src, dst, timeout, async_op)

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Work | None:
        """Of the ranks, not of their GPUs: it says nothing of what is enqueued there."""
        return self.host.barrier(timeout=timeout, async_op=async_op)

    def symmetric(self, nbytes: int, *, timeout: float | None = None) -> tuple[int, int, int] | None:
        return self.host.symmetric(nbytes, timeout=timeout)

    # ---- point to point ----

    def _by_host(self, buffer: Buffer, peer: int | None, tag: int) -> bool:
        """ValueError for a message that NCCL cannot match: it would reach the wrong receive."""
        if buffer.device_type != _CPU and (tag or peer is None):
            raise ValueError("NCCL's messages have no tags and no receive from any source: use tag 0 and name the source, or "
                             "send a copy in host memory")
        return buffer.device_type == _CPU

    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work | None:
        if self._by_host(src, peer, tag):
            return self.host.send(src, peer, tag, timeout=timeout, async_op=async_op)
        return self._run("send", lambda comm, stream: self.nccl.ncclSend(
            src.address, src.nbytes, UINT8, peer, comm, stream), src, None, timeout, async_op)

    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Work:
        if self._by_host(dst, peer, tag):
            return self.host.recv(dst, peer, tag, timeout=timeout, async_op=async_op)
        assert peer is not None
        work = self._run("recv", lambda comm, stream: self.nccl.ncclRecv(
            dst.address, dst.nbytes, UINT8, peer, comm, stream), None, dst, timeout, True)
        assert work is not None  # async_op is True
        work.peer = (peer, tag, dst.nbytes)
        if not async_op:
            work.wait()
        return work

    @contextmanager
    def _grouping(self) -> Iterator[None]:
        with self.lock, self.cuda.on(self.device):
            self._check_ready()
            self.nccl.ncclGroupStart()
            self._batch, _thread.batch = [], self
            try:
                yield
            finally:
                self._end_batch()
        watcher.wake()

    def _end_batch(self) -> None:
        """Also after an exception: what was called before it is enqueued all the same."""
        _thread.batch = None
        code = self.nccl.ncclGroupEnd()
        works, self._batch = self._batch or [], None
        try:
            if self.failure is None and (works or code):
                self._settle(code, "a batch", self.timeout)
                self._flight.enqueued(works, self._stream)
        except DistError as error:
            raise self._broken(error) from None
        finally:
            if self.failure is not None:
                for work in works:
                    work.error, work.ended = self.failure, True
                self._broken(self.failure)  # now the handle can go

    def batch(self) -> AbstractContextManager[None]:
        """One group of NCCL's calls, collectives too: they start together."""
        return self._grouping()

    # ---- groups ----

    def split(self, members: Sequence[int], name: str, *, timeout: float) -> NcclCommunicator:
        from .opening import split

        return split(self, members, name, timeout)

    def check_peers(self) -> None:
        if self.failure is None or isinstance(self.failure, PeerLost):
            self.host.check_peers()

    def abort(self, reason: str) -> None:
        if self.failure is None and not self.closed:
            self._broken(Aborted(f"rank {self.rank} of {self.size} in group {self.name!r} aborted the group"
                                 + (f": {reason}" if reason else "")))

    def close(self, reason: str = "") -> None:
        with self.lock:
            if self.closed:
                return
            self.closed = True
            ending = Aborted(f"group {self.name!r} was closed while the operation was under way")
            try:
                if self.failure is None and not reason:
                    self.handle.finish(min(self.timeout, _PATIENCE))
            except DistError as error:
                ending = Aborted(f"{ending}: {error}")
                log().info("group %r: NCCL was ended by force: %s", self.name, error)
            self._flight.fail(ending)
            self.handle.abort()
            try:
                self._flight.close()
                self.cuda.destroy_stream(self._stream)
            except DistBackendError as error:
                log().info("group %r: its stream and events stay: %s", self.name, error)
        self.host.close(reason)

"""NcclCommunicator: the Communicator over NCCL: how operations (operations.py) are enqueued, watched and ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.base.errors import (
    Aborted,
    CollectiveTimeout,
    DeviceError,
    DistBackendError,
    DistError,
    PeerLost,
    ResourceError,
)
from arraycomm.core.base.log import log
from arraycomm.core.gpu.runtime import Runtime
from arraycomm.core.interface.backend import Communicator, Watch

from .canary import Canary
from .declarations import version_text
from .flight import Flight, watcher
from .handle import Handle
from .library import IN_PROGRESS
from .memory import Block, allocate
from .operations import Operations
from .work import NcclWork

_PATIENCE = 5.0  # s that close() waits for peers with pending operations
_GRACE = 0.25  # s for pending operations when a peer leaves: the peer may have completed its part
_STUCK = 0.5  # s after a failure in which a blocked NCCL call may still return


class _Thread(threading.local):
    batch: NcclCommunicator | None = None  # the open batch: NCCL has one group of calls per thread


_thread = _Thread()


def refuse_in_batch(name: str) -> None:
    """ValueError inside the batch of another communicator: NCCL would defer this call to the end of that batch."""
    if _thread.batch is not None:
        raise ValueError(f"group {name!r} within batch() of group {_thread.batch.name!r}: NCCL would begin its call when that "
                         "batch ends; call it before or after the batch")


class NcclCommunicator(Operations):
    """One rank's handle of a group whose arrays are on GPUs. See arraycomm.core.interface.backend for the contract.

    Operations are enqueued on the current stream of the array's library, and the host does not wait for them. Asynchronous
    operations use a stream of the communicator. `host` is a CPU communicator of the same ranks: for arrays in host memory,
    and for failure detection.
    """

    def __init__(self, handle: Handle, cuda: Runtime, host: Communicator, device: int, timeout: float,
                 options: Mapping[str, Any], *, priority: bool) -> None:
        """Takes ownership of the handle and `host`. priority: its stream has high priority."""
        self.rank, self.size, self.name, self.timeout = host.rank, host.size, host.name, timeout
        super().__init__(handle.nccl, host)
        self.device = device
        self.shortcut = host.shortcut  # the fast path; it declines arrays that are not in host memory
        self.closed = False
        self.failure: DistError | None = None
        self.lock = threading.RLock()
        self.handle, self.cuda, self.options, self.priority = handle, cuda, options, priority
        self._flight = Flight(cuda, device, handle.who)
        self._stream = cuda.stream(device, high_priority=priority)
        self._canary = Canary(host)
        self._batch: list[NcclWork] | None = None
        self.blocks: list[Block] = []  # symmetric memory
        self._inside: NcclWork | None = None  # the work whose NCCL call is in progress and may block: the first connects ranks
        self._failed_at = 0.0
        watcher.watch(self)

    @property
    def about(self) -> str:
        return f"NCCL {version_text(self.handle.nccl.version)} on GPU {self.device}, {self.host.about}"

    # ---- enqueueing ----

    def _run(self, what: str, src: Buffer | None, dst: Buffer | None, timeout: float | None, async_op: bool,
             call: Callable[..., int], *arguments: Any) -> NcclWork | None:
        with self.lock:
            try:
                self.check_ready()
                if self._batch is not None and not async_op:
                    raise ValueError(f"{what} within batch() needs async_op=True: its result is there when the batch has ended")
                theirs = self._streams_of(src, dst)
                if len(theirs) == 1 and self._flight.place.ordinary(theirs[0]):
                    work = self._enqueue(what, src, dst, theirs, timeout, async_op, call, arguments)
                else:
                    with self.cuda.on(self.device):
                        self.cuda.refuse_capture(theirs)
                        work = self._enqueue(what, src, dst, theirs, timeout, async_op, call, arguments)
            except (DistBackendError, ResourceError) as error:  # a CUDA error: abort, so that the peers do not wait for this rank
                raise self.broken(error) from None
        if async_op:
            return work
        if work.unordered:
            work.wait()
        return None

    def _enqueue(self, what: str, src: Buffer | None, dst: Buffer | None, theirs: list[int], timeout: float | None,
                 async_op: bool, call: Callable[..., int], arguments: tuple[Any, ...]) -> NcclWork:
        """theirs: the arrays' streams, without duplicates. Their device is the current one."""
        stream = self._stream if async_op else theirs[0]
        for other in theirs:
            if other != stream:
                self._flight.behind(other, stream)
        seconds = self.timeout if timeout is None else timeout
        kept = async_op or (src is not None and src.fleeting) or (dst is not None and dst.fleeting)
        work = NcclWork(self._flight, what, theirs[0], time.monotonic() + seconds, (src, dst) if kept else (),
                        unordered=dst is not None and dst.fleeting)
        self._inside = work  # until it is recorded as pending: the watcher sleeps when it finds no work
        try:
            if not watcher.awake:
                watcher.wake()
            code = call(*arguments, self.handle.comm, stream)
            if self.failure is not None:
                raise self.broken(self.failure)
            if self._batch is not None:
                self._batch.append(work)
                if code not in (0, IN_PROGRESS):
                    raise self.broken(self.handle.error(code, what))
                return work
            if code:
                self._settle(code, what, seconds)
            self._flight.enqueued([work], stream)
        finally:
            self._inside = None
        if not async_op and len(theirs) > 1:
            self._flight.behind(stream, theirs[1])
        return work

    def _streams_of(self, src: Buffer | None, dst: Buffer | None) -> list[int]:
        """The streams of the buffers, without duplicates."""
        streams: list[int] = []
        for buffer in (src,) if dst is None else (dst,) if src is None or src is dst else (dst, src):
            assert buffer is not None  # an operation has at least one buffer
            if buffer.device_index != self.device:
                raise DeviceError(f"group {self.name!r} works on cuda:{self.device}, and the array is on "
                                  f"cuda:{buffer.device_index}: a rank has one device, chosen when the group is made")
            if buffer.stream not in streams:
                streams.append(buffer.stream)
        return streams

    def _settle(self, code: int, what: str, seconds: float) -> None:
        """Raises for an error code. It may be the asynchronous error of an earlier operation: this is checked first."""
        try:
            failed = 0 if code == IN_PROGRESS else self.handle.failed()
            if failed:
                raise self.handle.error(failed, self._flight.oldest() or what)
            self.handle.settle(code, what, seconds)
        except DistError as error:
            raise self.broken(error) from None

    def check_ready(self) -> None:
        """Raises if no operation can be enqueued (failed, closed, another batch). The caller holds the lock."""
        if _thread.batch is not None and _thread.batch is not self:
            refuse_in_batch(self.name)
        if self.failure is None and not self.closed:
            error = self._canary.error()
            if error is None:
                return
            self.broken(error)
        if self.failure is not None:
            raise self.broken(self.failure)
        raise Aborted(f"group {self.name!r} is closed; make a new one with arraycomm.init() or split()")

    def check_failure(self) -> None:
        """Raises the group's failure, if any. Called while a call is polled, from any thread."""
        if self.failure is not None:
            raise self.failure
        self._canary.check()

    # ---- failure ----

    def broken(self, error: DistError) -> DistError:
        """Stores the first failure, notifies the peers and aborts pending operations. Returns the error to raise. Thread-safe."""
        if self.failure is None:
            error = self._canary.named(error)
            self._failed_at = time.monotonic()
            self.failure = error
            self._flight.fail(error)
            self.host.abort(str(error))
            log().warning("group %r failed; what it had under way on the GPU is not complete: %s", self.name, error)
        if self.lock.acquire(blocking=False):  # else the lock's holder will check the failure
            try:
                if self._batch is None:  # an open ncclGroupStart must be ended before
                    self.handle.abort()
            finally:
                self.lock.release()
        return self.failure

    def tick(self) -> bool:
        """Called by the watcher thread. Returns whether work is pending."""
        if self.closed:
            return False
        if self.failure is not None:
            self.broken(self.failure)  # the handle may not be aborted yet
            if self._inside is not None and time.monotonic() > self._failed_at + _STUCK:
                self.handle.abort()  # the lock's holder is blocked in an NCCL call; abort makes it return
            return self.handle.comm != 0
        try:
            if self._flight:
                self.cuda.serve(self.device)
            first = self._flight.reap() or self._inside
            if first is not None:
                self._look_after(first)
        except DistError as error:
            self.broken(error)
        return first is not None if self.failure is None else self.handle.comm != 0

    def _look_after(self, first: NcclWork) -> None:
        """Raises the reason why the first work cannot complete: a failure or its timeout."""
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

    # ---- memory ----

    def symmetric_on(self, nbytes: int, device: int, *, timeout: float | None = None) -> tuple[int, int, int] | None:
        """As symmetric(), on the GPU with this ordinal."""
        if device != self.device:
            raise DeviceError(f"group {self.name!r} works on cuda:{self.device}, and the array of like= is on cuda:{device}")
        block = allocate(self, nbytes, timeout)
        return None if block is None else (block.pointer, block.release, block.context)

    # ---- batches ----

    @contextmanager
    def batch(self) -> Iterator[None]:
        """One ncclGroupStart/ncclGroupEnd, also for collectives: the calls start together."""
        with self.lock, self.cuda.on(self.device):
            self.check_ready()
            self.nccl.ncclGroupStart()
            self._batch, _thread.batch = [], self
            try:
                yield
            finally:
                self._end_batch()
        watcher.wake()

    def _end_batch(self) -> None:
        """Ends NCCL's group, also after an exception: the calls before the exception are enqueued anyway."""
        _thread.batch = None
        works, self._batch = self._batch or [], None
        try:
            self._inside = works[0] if works else None
            watcher.wake()
            code = self.nccl.ncclGroupEnd()
            if self.failure is None and (works or code):
                self._settle(code, "a batch", self.timeout)
                self._flight.enqueued(works, self._stream)
        except DistError as error:
            raise self.broken(error) from None
        finally:
            self._inside = None
            if self.failure is not None:
                for work in works:
                    work.error, work.ended = self.failure, True
                self.broken(self.failure)  # now the handle can be aborted

    # ---- groups ----

    def split(self, members: Sequence[int], name: str, *, timeout: float, watch: Watch | None = None) -> NcclCommunicator:
        """Only the members call it. It does not use ncclCommSplit: that is collective over the parent, blocks the parent until
        all ranks have called it, and an error in it fails the parent."""
        from .opening import connect

        refuse_in_batch(name)
        host = self.host.split(members, name, timeout=timeout, watch=watch)
        try:
            return connect(self.nccl, self.cuda, host, self.device, timeout, self.options, self.priority)
        except BaseException as error:
            host.close(type(error).__name__)
            raise

    def check_peers(self) -> None:
        if self.failure is None or isinstance(self.failure, PeerLost):
            self.host.check_peers()

    def abort(self, reason: str) -> None:
        if self.failure is None and not self.closed:
            self.broken(Aborted(f"rank {self.rank} of {self.size} in group {self.name!r} aborted the group"
                                 + (f": {reason}" if reason else "")))

    def close(self, reason: str = "") -> None:
        with self.lock:
            if self.closed:
                return
            self.closed = True
            ending = Aborted(f"group {self.name!r} was closed while the operation was under way")
            try:
                if self.failure is None and not reason:
                    self._end_blocks(min(self.timeout, _PATIENCE))
                    self.handle.finish(min(self.timeout, _PATIENCE))
            except DistError as error:
                ending = Aborted(f"{ending}: {error}")
                log().info("group %r: NCCL was ended by force: %s", self.name, error)
            self._flight.fail(ending)
            self.handle.abort()
            self._end_blocks(0)
            try:
                self._flight.close()
                with self.cuda.on(self.device):
                    self.cuda.destroy_stream(self._stream)
            except DistBackendError as error:
                log().info("group %r: its stream and events stay: %s", self.name, error)
        self.host.close(reason)
        if self._staged is not None:
            self._staged.close()

    def _end_blocks(self, seconds: float) -> None:
        """Deregisters symmetric memory when the operations on it have completed. The memory lives as long as its array."""
        if self.blocks and self.handle.comm:
            self._flight.drain(seconds)
        while self.blocks:
            self.blocks.pop().deregister()

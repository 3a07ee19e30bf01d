"""Point-to-point methods of Group: sends, receives and probes."""

from __future__ import annotations

import types
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..arrays.buffer import Buffer
from ..arrays.opaque import readable
from ..arrays.types import DeviceType, DType
from . import arguments
from .part import Part, short
from .work import Message, Received, Work

if TYPE_CHECKING:
    from typing import overload

    from .part import Array


class MessageMethods(Part):
    """See Group, which has these methods."""

    @short
    def send(self, x: Any, dest: int, tag: int = 0, *, timeout: float | None = None) -> Work[None] | None:
        """Sends x to rank `dest`. Messages are independent of the collectives' order.

        - Shapes: any; the receiver's array has as many elements.
        - Dtypes: every one; the receiver's is the same.
        - Memory: x is read only, and may be changed when the call has returned. x with strides is packed into a copy first.
        - Blocks: until x may be changed. A short message is buffered while there is capacity, a long one waits for its receiver:
          see sendrecv() and batch() for exchanges. Inside batch() it returns a Work at once.
        - Timeout: seconds; None takes the group's. CollectiveTimeout, and the group has failed.
        - Errors: TypeError for what is no array, ValueError for dest and tag, before anything is sent. Then PeerLost, Aborted.

        Examples:
            >>> def work(group):
            ...     if group.rank == 0:
            ...         return group.send(np.arange(3), dest=1)
            ...     return group.recv(source=0, like=np.empty(3, int)).array.tolist()
            >>> arraycomm.run(work, 2)
            [None, [0, 1, 2]]
        """
        if self._batch is not None:
            return self.isend(x, dest, tag, timeout=timeout)
        arguments.seconds(timeout)
        src = self._movable(x)
        dest = arguments.rank("dest", dest, self.size)
        tag = arguments.tag(tag)
        self._movers[src.device_type].send(src, dest, tag, timeout=timeout)
        return None

    if TYPE_CHECKING:
        @overload
        def recv(self, source: int | None = None, tag: int = 0, *, like: Array, out: None = None,
                 timeout: float | None = None) -> Received[Array]: ...
        @overload
        def recv(self, source: int | None = None, tag: int = 0, *, like: None = None, out: Array,
                 timeout: float | None = None) -> Received[Array]: ...

    @short
    def recv(self, source: int | None = None, tag: int = 0, *, like: Any = None, out: Any = None,
             timeout: float | None = None) -> Any:
        """Receives a message and gives Received(array, source, tag).

        Args:
            source: a rank, or None for any.
            tag: of the message, or arraycomm.ANY_TAG.
            like: an array whose library, shape and dtype the new one has.
            out: the array to write into; give one of like and out.

        Messages of one tag between two ranks arrive in the order in which they were sent.

        - Shapes: of like or out; the message has as many elements.
        - Dtypes: of like or out; the message's is the same.
        - Memory: out must be contiguous and writable, and is undefined after an error.
        - Blocks: until the message is here. Inside batch() it returns a Work at once.
        - Timeout: seconds; where none comes in time that is CollectiveTimeout, and the group has failed on all ranks. To poll,
          use irecv(...).result(timeout), which may be asked again, or probe().
        - Errors: TypeError, ValueError for the arguments. A message of another size or dtype is a CollectiveMismatch, and the
          group stays usable. PeerLost when the source has died or left; without a source, when
          all other ranks have.

        Examples:
            >>> def work(group):
            ...     if group.rank == 1:
            ...         return group.send(np.ones(2), dest=0, tag=5)
            ...     got = group.recv(tag=arraycomm.ANY_TAG, like=np.empty(2))
            ...     return got.array.tolist(), got.source, got.tag
            >>> arraycomm.run(work, 2)
            [([1.0, 1.0], 1, 5), None]
        """
        work = self.irecv(source, tag, like=like, out=out, timeout=timeout)
        return work if self._batch is not None else work.result()

    @short
    def isend(self, x: Any, dest: int, tag: int = 0, *, timeout: float | None = None) -> Work[None]:
        """As send(), but returns a Work at once.

        - Shapes: any; the receiver's array has as many elements.
        - Dtypes: every one; the receiver's is the same.
        - Memory: x must not be changed before the Work has ended; the Work keeps it alive.
        - Blocks: never; Work.wait() does.
        - Timeout: the deadline of the operation itself, as in send(). That of Work.wait(timeout) does not end the message.
        - Errors: as send(), those after the arguments' from Work.wait() and Work.result().

        Examples:
            >>> def work(group):
            ...     going = group.isend(np.full(1, group.rank), dest=1 - group.rank)
            ...     got = group.recv(like=np.empty(1, int)).array.tolist()
            ...     going.wait()
            ...     return got
            >>> arraycomm.run(work, 2)
            [[1], [0]]
        """
        arguments.seconds(timeout)
        src = self._movable(x)
        dest = arguments.rank("dest", dest, self.size)
        tag = arguments.tag(tag)
        work = self._movers[src.device_type].send(src, dest, tag, timeout=timeout, async_op=True)
        return self._started(Work(work, arguments.nothing))

    if TYPE_CHECKING:
        @overload
        def irecv(self, source: int | None = None, tag: int = 0, *, like: Array, out: None = None,
                  timeout: float | None = None) -> Work[Received[Array]]: ...
        @overload
        def irecv(self, source: int | None = None, tag: int = 0, *, like: None = None, out: Array,
                  timeout: float | None = None) -> Work[Received[Array]]: ...

    @short
    def irecv(self, source: int | None = None, tag: int = 0, *, like: Any = None, out: Any = None,
              timeout: float | None = None) -> Any:
        """As recv(), but returns a Work at once; its result() is the Received.

        - Shapes: of like or out; the message has as many elements.
        - Dtypes: of like or out; the message's is the same.
        - Memory: out must not be read or written before the Work has ended; the Work keeps it alive.
        - Blocks: never; Work.result() does.
        - Timeout: as in recv(), it ends the group. That of result(timeout) does not: TimeoutError, and the receive continues.
        - Errors: as recv(), those after the arguments' from Work.wait() and Work.result().

        Examples:
            >>> def work(group):
            ...     coming = group.irecv(like=np.empty(1, int))
            ...     group.send(np.full(1, group.rank), dest=1 - group.rank)
            ...     return coming.result().array.tolist()
            >>> arraycomm.run(work, 2)
            [[1], [0]]
        """
        return self._receive(source, tag, like, out, timeout)

    def batch(self) -> AbstractContextManager[None]:
        """A context in which messages start together; all have ended when the context ends.

        Inside, send() and recv() return Works, so that the order of messages cannot cause a deadlock. Type checkers do not know
        that: isend() and irecv() have the right types.

        - Blocks: at its end, until all messages begun inside have ended; not after an exception inside.
        - Timeout: each message has its own.
        - Errors: ValueError when nested; at its end those of the messages.

        Examples:
            >>> def work(group):
            ...     with group.batch():
            ...         group.send(np.full(1, group.rank), dest=(group.rank + 1) % group.size)
            ...         coming = group.recv(source=(group.rank - 1) % group.size, like=np.empty(1, int))
            ...     return coming.result().array.tolist()
            >>> arraycomm.run(work, 3)
            [[2], [0], [1]]
        """
        return _Batch(self, self._routes.batch())

    def _started(self, work: Work[Any]) -> Work[Any]:
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _movable(self, x: Any) -> Any:
        return self._readable(x, readable)

    def probe(self, source: int | None = None, tag: int = 0, *, timeout: float | None = None) -> Message | None:
        """A Message: the first that has arrived, which a receive of this source and tag would take. It stays, for a receive.

        Args:
            source: a rank, or None for any.
            tag: of the message, or arraycomm.ANY_TAG.

        - Blocks: until there is such a message, at most `timeout` seconds.
        - Timeout: seconds; 0 only looks, None takes the group's. Gives None if none has arrived by then; the group stays usable.
        - Errors: ValueError for source and tag, and where the backend has no messages of host memory (NCCL). PeerLost, Aborted.

        Examples:
            >>> def work(group):
            ...     if group.rank == 0:
            ...         return group.send(np.ones(3), dest=1)
            ...     found = group.probe()
            ...     return group.recv(found.source, like=np.empty(found.elements)).array.size
            >>> arraycomm.run(work, 2)
            [None, 3]
        """
        arguments.seconds(timeout)
        source, tag = arguments.source(source, self.size), arguments.received_tag(tag)
        look = getattr(self._communicator, "probe", None)
        if look is None:
            raise ValueError(f"the backend {self.backend} of group {self.name!r} cannot report messages before their receive: "
                             "use irecv(...).done()")
        found = look(source, tag, timeout)
        return None if found is None else Message(found[0], found[1], DType(found[2]), found[3])

    if TYPE_CHECKING:
        @overload
        def sendrecv(self, x: Array, dest: int, source: int | None = None, tag: int = 0, *,
                     timeout: float | None = None) -> Received[Array]: ...
        @overload
        def sendrecv(self, x: Any, dest: int, source: int | None = None, tag: int = 0, *, like: Array, out: None = None,
                     timeout: float | None = None) -> Received[Array]: ...
        @overload
        def sendrecv(self, x: Any, dest: int, source: int | None = None, tag: int = 0, *, like: None = None, out: Array,
                     timeout: float | None = None) -> Received[Array]: ...

    def sendrecv(self, x: Any, dest: int, source: int | None = None, tag: int = 0, *, like: Any = None, out: Any = None,
                 timeout: float | None = None) -> Any:
        """Sends x to rank `dest` and receives from rank `source` at the same time, without a deadlock; gives the Received.

        Args:
            tag: of both messages.
            like: as in recv(); without like and out the received array is like x.

        - Shapes: any; the two messages may differ.
        - Dtypes: every one; of like or out, or of x without them.
        - Memory: out must share no memory with x.
        - Blocks: until both have ended. Inside batch() it returns the receive's Work at once.
        - Timeout: seconds, of each; None takes the group's. CollectiveTimeout, and the group has failed.
        - Errors: as send() and recv(); ValueError where out overlaps x.

        Examples:
            >>> def work(group):
            ...     other = 1 - group.rank
            ...     return group.sendrecv(np.full(1, group.rank), dest=other, source=other).array.tolist()
            >>> arraycomm.run(work, 2)
            [[1], [0]]
        """
        arguments.seconds(timeout)
        src = self._movable(x)
        dest, tag = arguments.rank("dest", dest, self.size), arguments.tag(tag)
        if out is not None:
            arguments.apart(src, out)
        # Host memory needs no batch, which takes longer than two short messages.
        with nullcontext() if self._batch is not None or src.device_type == DeviceType.CPU else self.batch():
            coming = (self._receive(source, tag, x, None, timeout, src) if like is None and out is None
                      else self.irecv(source, tag, like=like, out=out, timeout=timeout))
            going = self.isend(src, dest, tag, timeout=timeout)
        if self._batch is not None:
            return coming
        received = coming.result()
        going.wait()
        return received

    def _receive(self, source: int | None, tag: int, like: Any, out: Any, timeout: float | None,
                 template: Buffer | None = None) -> Work[Received[Any]]:
        """template: the Buffer of like, if the caller has it; else it is read here."""
        arguments.seconds(timeout)
        source = arguments.source(source, self.size)
        tag = arguments.received_tag(tag)
        if (like is None) == (out is None):
            raise TypeError("a receive takes one of like= (for a new array) and out= (to fill), got "
                            f"{'none' if out is None else 'both'}")
        template = template or self._movable(out if like is None else like)
        to = arguments.in_place(out, template) if like is None else arguments.destination(like, template, template.shape, None)
        pending = self._movers[template.device_type].recv(to.buffer, source, tag, timeout=timeout, async_op=True)

        def received() -> Received[Any]:
            rank, got, _ = pending.source()
            return Received(to.array(), rank, got)

        return self._started(Work(pending, received))


class _Batch:
    """Group.batch(). A class, because a generator's context manager is slower than the messages."""

    __slots__ = ("_group", "_together")

    def __init__(self, group: MessageMethods, together: AbstractContextManager[None]) -> None:
        self._group = group
        self._together = together

    def __enter__(self) -> None:
        if self._group._batch is not None:
            raise ValueError("batch() cannot be nested")
        self._together.__enter__()
        self._group._batch = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        started, self._group._batch = self._group._batch, None
        self._together.__exit__(kind, error, trace)
        if error is None and started is not None:
            for work in started:
                work.wait()

"""Methods of Group that are made of sends and receives, or look for messages, as a part of it."""

from __future__ import annotations

import types
from contextlib import AbstractContextManager, nullcontext

from ..arrays.buffer import Buffer
from ..arrays.opaque import readable
from ..arrays.types import DType
from ..base.typed import TYPE_CHECKING, Any
from . import arguments
from .work import Message, Received, Work

if TYPE_CHECKING:
    from .routes import Routes


class MessageMethods:
    """See Group, which has these methods."""

    size: int
    name: str
    backend: str
    _communicator: Any
    if TYPE_CHECKING:
        _batch: Any
        _movers: Any
        _readable: Any
        _routes: Routes
        isend: Any

    def batch(self) -> AbstractContextManager[None]:
        """Groups point-to-point operations: they start together, and all have ended when the context ends.

        Inside, send and recv return Works. So a ring exchange cannot dead-lock, whatever the order. ValueError when nested.
        """
        return _Batch(self, self._routes.batch())

    def _started(self, work: Work) -> Work:
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _movable(self, x: Any) -> Any:
        return self._readable(x, readable)

    def probe(self, source: int | None = None, tag: int = 0, *, timeout: float | None = None) -> Message | None:
        """The first message that has come and that a receive of this source and tag would take: Message(source, tag,
        dtype, elements); of a dtype that is moved as bytes it is DType(n) of label "opaque", and elements are bytes.

        It stays, for a receive. source: a rank, or None for any; tag: or arraycomm.ANY_TAG. timeout: seconds to wait for one, 0
        only looks, None takes the group's; None when none has come by then, and the group stays usable. Of messages of host
        memory: ValueError where the group's backend has none (NCCL).
        """
        arguments.seconds(timeout)
        source, tag = arguments.source(source, self.size), arguments.received_tag(tag)
        look = getattr(self._communicator, "probe", None)
        if look is None:
            raise ValueError(f"the backend {self.backend} of group {self.name!r} cannot tell of messages that are not received: "
                             "use irecv(...).done()")
        found = look(source, tag, timeout)
        return None if found is None else Message(found[0], found[1], DType(found[2]), found[3])

    def sendrecv(self, x: Any, dest: int, source: int | None = None, tag: int = 0, *, like: Any = None, out: Any = None,
                 timeout: float | None = None) -> Any:
        """Sends x to rank `dest` and receives from rank `source` meanwhile, which cannot dead-lock; gives the Received.

        tag: of both messages. like, out: as in recv(); neither: like x. out shares no memory with x (ValueError).
        Inside batch() it returns the receive's Work at once.
        """
        arguments.seconds(timeout)
        src = self._movable(x)
        dest, tag = arguments.rank("dest", dest, self.size), arguments.tag(tag)
        if out is not None:
            arguments.apart(src, out)
        template = src if like is None and out is None else None
        with nullcontext() if self._batch is not None else self.batch():
            work = self._receive(source, tag, like if template is None else x, out, timeout, template)
            self.isend(src, dest, tag, timeout=timeout)
        return work if self._batch is not None else work.result()

    def _receive(self, source: int | None, tag: int, like: Any, out: Any, timeout: float | None,
                 template: Buffer | None = None) -> Work:
        """template: of like, which is read here otherwise."""
        arguments.seconds(timeout)
        source = arguments.source(source, self.size)
        tag = arguments.received_tag(tag)
        if (like is None) == (out is None):
            raise TypeError("a receive takes one of like= (for a new array) and out= (to fill), got "
                            f"{'none' if out is None else 'both'}")
        template = template or self._movable(out if like is None else like)
        to = arguments.in_place(out, template) if like is None else arguments.destination(like, template, template.shape, None)
        pending = self._movers[template.device_type].recv(to.buffer, source, tag, timeout=timeout, async_op=True)

        def received() -> Received:
            rank, got, _ = pending.source()
            return Received(to.array(), rank, got)

        return self._started(Work(pending, received))


class _Batch:
    """Group.batch(). A class, because a generator's context costs more than the messages."""

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

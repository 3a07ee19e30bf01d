"""Collectives and messages of Python objects, as a part of Group.

Objects travel by codec.py, which carries plain data and arrays only. allow_pickle=True pickles them instead, which any
rank can misuse to run code in the others: all ranks must say so, or all get ValueError. First the ranks exchange lengths. So
an object that cannot be sent is an error on all ranks, and the group stays usable.
"""

from __future__ import annotations

import array
import importlib
import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from ..arrays import codec
from ..arrays.buffer import Buffer
from ..arrays.codec import as_bytes
from ..arrays.dlpack import allocate, resolve
from ..arrays.types import DType
from ..base.errors import DistError
from ..interface.backend import Communicator
from . import arguments
from .exchange import gather_integers
from .part import Part
from .work import Several, Work

_T = TypeVar("_T")

_SAFE, _PICKLED, _FAILED = range(3)
_HEADS, _CONTENTS = 2**62, 3 * 2**61  # first tags of objects, which no receive of an array matches
_ANY_OBJECT = -2  # a receive's tag: any from _HEADS to _CONTENTS
_CONTENTS_TAGS = 2**61 - 1  # the last one is TAG_WATCH
_numbers = itertools.count()  # number of each object sent by this process, for the tag of its contents
_LENGTH = 8  # bytes of a length in front of an object


class ObjectCollectives(Part):
    """The methods of Group that take and give objects."""

    def all_gather_object(self, obj: _T, *, allow_pickle: bool = False, timeout: float | None = None) -> list[_T]:
        """Every rank's object, in rank order, on every rank.

        Args:
            allow_pickle: True pickles the objects; a sender can then run code in every rank. The same on all ranks.

        - Blocks: until every rank has called it.
        - Timeout: seconds for each step; None takes the group's. CollectiveTimeout, and the group has failed.
        - Errors: TypeError for an object that does not travel (docs/reference/objects.md has the types), DistError on the other
          ranks, and the group stays usable. ValueError where ranks differ in allow_pickle. Then PeerLost, Aborted.

        Examples:
            >>> arraycomm.run(lambda group: group.all_gather_object({"rank": group.rank}), 2)[0]
            [{'rank': 0}, {'rank': 1}]
        """
        data, sizes = _agree(self._communicator, [obj], allow_pickle, timeout)
        whole = _bytes(sum(sizes))
        self.all_gather(_readable(data[0]), counts=sizes, out=whole, timeout=timeout)
        return _parts(whole, sizes, allow_pickle)

    def gather_object(self, obj: _T, root: int = 0, *, allow_pickle: bool = False,
                      timeout: float | None = None) -> list[_T] | None:
        """Every rank's object, in rank order, on `root`; None elsewhere.

        - Blocks: until every rank has called it, as the lengths are exchanged first.
        - Timeout: seconds for each step; None takes the group's. CollectiveTimeout, and the group has failed.
        - Errors: as all_gather_object(), and ValueError for a root that is no rank of the group.

        Examples:
            >>> arraycomm.run(lambda group: group.gather_object("abc"[group.rank], root=1), 3)
            [None, ['a', 'b', 'c'], None]
        """
        root = arguments.root(root, self.size)
        data, sizes = _agree(self._communicator, [obj], allow_pickle, timeout)
        longest = max(sizes)
        whole = _bytes(longest * self.size) if self.rank == root else None
        self.gather(_readable(data[0].ljust(longest, b"\0")), root, out=whole, timeout=timeout)
        if whole is None:
            return None
        view = memoryview(whole)
        return [_object(view[r * longest : r * longest + size], r, allow_pickle) for r, size in enumerate(sizes)]

    def broadcast_object(self, obj: _T | None = None, root: int = 0, *, allow_pickle: bool = False,
                         timeout: float | None = None) -> _T:
        """The root's object on every rank; what the others give is ignored. The root gets its own object back.

        - Blocks: until every rank has called it, as the lengths are exchanged first.
        - Timeout: seconds for each step; None takes the group's. CollectiveTimeout, and the group has failed.
        - Errors: as all_gather_object(), and ValueError for a root that is no rank of the group.

        Examples:
            >>> arraycomm.run(lambda group: group.broadcast_object((1, "two") if group.rank == 0 else None), 2)
            [(1, 'two'), (1, 'two')]
        """
        root = arguments.root(root, self.size)
        mine = [obj] if self.rank == root else []
        data, sizes = _agree(self._communicator, mine, allow_pickle, timeout)
        whole = _bytes(sizes[root])
        if self.rank == root:
            memoryview(whole)[:] = data[0]
        self.broadcast(whole, root, out=whole, timeout=timeout)
        return obj if self.rank == root else _object(memoryview(whole), root, allow_pickle)  # type: ignore[return-value]

    def scatter_objects(self, objs: Sequence[_T] | None = None, root: int = 0, *, allow_pickle: bool = False,
                        timeout: float | None = None) -> _T:
        """Object r of the root's sequence on rank r.

        - Blocks: until every rank has called it, as the lengths are exchanged first.
        - Timeout: seconds for each step; None takes the group's. CollectiveTimeout, and the group has failed.
        - Errors: as all_gather_object(), and ValueError at the root unless there is one object for every rank.

        Examples:
            >>> arraycomm.run(lambda group: group.scatter_objects(["a", "b"] if group.rank == 0 else None), 2)
            ['a', 'b']
        """
        root = arguments.root(root, self.size)
        mine: Sequence[object] = ()
        if self.rank == root:
            if objs is None or len(objs) != self.size:
                raise ValueError(f"scatter_objects needs one object for each of the {self.size} ranks, got "
                                 f"{'none' if objs is None else len(objs)}")
            mine = objs
        data, sizes = _agree(self._communicator, mine, allow_pickle, timeout)
        part = _bytes(_LENGTH + sizes[root])
        whole = b"".join((len(one).to_bytes(_LENGTH, "little") + one).ljust(part.count, b"\0") for one in data)
        self.scatter(_readable(whole) if self.rank == root else None, root, out=part, timeout=timeout)
        view = memoryview(part)
        end = _LENGTH + int.from_bytes(view[:_LENGTH], "little")
        return _object(view[_LENGTH:end], root, allow_pickle)  # type: ignore[no-any-return]

    def send_object(self, obj: object, dest: int, tag: int = 0, *, allow_pickle: bool = False,
                    timeout: float | None = None) -> Work[None] | None:
        """Sends an object to rank `dest`, whose recv_object() or irecv_object() takes it.

        - Blocks: until the object has been copied or received, see send(). Inside batch() it returns a Work at once.
        - Timeout: seconds for each step; None takes the group's. CollectiveTimeout, and the group has failed.
        - Errors: TypeError for an object that cannot be sent, ValueError for dest and tag, before anything is sent. Then
          PeerLost, Aborted.

        Examples:
            >>> def work(group):
            ...     if group.rank == 0:
            ...         return group.send_object([1, "x"], dest=1)
            ...     return group.recv_object(source=0)
            >>> arraycomm.run(work, 2)
            [None, ([1, 'x'], 0)]
        """
        work = self.isend_object(obj, dest, tag, allow_pickle=allow_pickle, timeout=timeout)
        return work if self._batch is not None else work.result()

    def isend_object(self, obj: object, dest: int, tag: int = 0, *, allow_pickle: bool = False,
                     timeout: float | None = None) -> Work[None]:
        """As send_object(), but returns a Work at once. The object is encoded by then, and may be changed.

        - Blocks: never; Work.wait() does.
        - Timeout: the deadline of the messages themselves, as in send_object(). That of Work.wait(timeout) does not end them.
        - Errors: as send_object(), those after the arguments' from Work.wait().

        Examples:
            >>> def work(group):
            ...     going = group.isend_object(group.rank, dest=1 - group.rank)
            ...     got = group.recv_object()
            ...     going.wait()
            ...     return got
            >>> arraycomm.run(work, 2)
            [(1, 1), (0, 0)]
        """
        tag = _checked_tag(tag)
        data, number = _encode(obj, allow_pickle), next(_numbers) % _CONTENTS_TAGS
        head = array.array("q", [_PICKLED if allow_pickle else _SAFE, len(data), number])
        both = [self.isend(head, dest, _HEADS + tag, timeout=timeout),
                self.isend(_readable(data), dest, _CONTENTS + number, timeout=timeout)]
        return Work(Several(both), arguments.nothing)

    def recv_object(self, source: int | None = None, tag: int = 0, *, allow_pickle: bool = False,
                    timeout: float | None = None) -> tuple[Any, int]:
        """Receives an object and gives (object, source).

        Args:
            source: a rank, or None for any.
            tag: of the object, or arraycomm.ANY_TAG.

        - Blocks: until the object is here. Inside batch() it returns a Work at once.
        - Timeout: seconds for each step; None takes the group's. CollectiveTimeout, and the group has failed.
        - Errors: ValueError when it was pickled and allow_pickle is False, or the other way round; the object is lost.
          PeerLost when the source has died or left; without a source, when all other ranks have.

        Examples:
            >>> def work(group):
            ...     if group.rank == 0:
            ...         return group.send_object("hello", dest=1, tag=3)
            ...     return group.recv_object(tag=arraycomm.ANY_TAG)
            >>> arraycomm.run(work, 2)
            [None, ('hello', 0)]
        """
        work: Any = self.irecv_object(source, tag, allow_pickle=allow_pickle, timeout=timeout)
        return work if self._batch is not None else work.result()  # type: ignore[no-any-return]

    def irecv_object(self, source: int | None = None, tag: int = 0, *, allow_pickle: bool = False,
                     timeout: float | None = None) -> Work[tuple[Any, int]]:
        """As recv_object(), but returns a Work at once; its result() is (object, source).

        - Blocks: never; Work.result() does.
        - Timeout: as in recv_object(), it ends the group. That of result(timeout) does not: TimeoutError, and it continues.
        - Errors: as recv_object(), from Work.wait() and Work.result().

        Examples:
            >>> def work(group):
            ...     coming = group.irecv_object()
            ...     group.send_object(group.rank, dest=1 - group.rank)
            ...     return coming.result()
            >>> arraycomm.run(work, 2)
            [(1, 1), (0, 0)]

        Several that take the same messages take them in the order of the calls, whichever is waited for first. A long object
        (above 1 MiB, say) comes while its Work is waited for, or asked by done().
        """
        head = array.array("q", [0, 0, 0])
        if tag is not None and arguments.integer("tag", tag) == arguments.ANY_TAG:
            source = arguments.source(source, self.size)
            arguments.seconds(timeout)
            pending = self._communicator.recv(resolve(head), source, _ANY_OBJECT, timeout=timeout, async_op=True)
            work = self._started(Work(pending, lambda: pending.source()[0]))
        else:
            received = self.irecv(source, _HEADS + _checked_tag(tag), out=head, timeout=timeout)
            work = Work(received, lambda: received.result().source)
        incoming = _Incoming(self, head, work, allow_pickle, timeout)
        return Work(incoming, incoming.object)


class _Incoming:
    """An object that is received, as one operation: the head, which says how long the contents are and which tag they have,
    then those. So contents cannot be taken for a head, nor for another object's contents."""

    def __init__(self, group: ObjectCollectives, head: array.array[int], work: Work[int], allow_pickle: bool,
                 timeout: float | None) -> None:
        self._group, self._head, self._work, self._pickled, self._timeout = group, head, work, allow_pickle, timeout
        self._lock = threading.Lock()  # several threads may wait
        self._contents: Work[None] | None = None
        self._error: ValueError | None = None  # of an invalid head

    def _announced(self, timeout: float | None) -> Work[None]:
        self._sender = self._work.result(timeout)
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._contents is None:
                try:
                    self._contents = self._expect(*self._head)
                except ValueError as error:
                    self._error = error
                    raise
            return self._contents

    def _expect(self, kind: int, length: int, number: int) -> Work[None]:
        _check_length(self._sender, length)
        if not 0 <= number < _CONTENTS_TAGS:
            raise ValueError(f"rank {self._sender} announces an object of number {number}, which none has")
        self._data = _bytes(length)
        tag = _CONTENTS + number
        pending = self._group._communicator.recv(self._data, self._sender, tag, timeout=self._timeout, async_op=True)
        return Work(pending, arguments.nothing)

    def wait(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        self._announced(timeout).wait(None if end is None else max(0.0, end - time.monotonic()))

    def done(self) -> bool:
        try:
            return self._work.done() and self._announced(None).done()
        except (DistError, ValueError):
            return True  # wait() raises the error

    def object(self) -> tuple[Any, int]:
        pickled = self._head[0] == _PICKLED
        if pickled != self._pickled:
            raise ValueError(_unlike(self._sender, pickled))
        return _object(memoryview(self._data), self._sender, self._pickled), self._sender


def _check_length(sender: int, length: int) -> None:
    if not 0 <= length <= codec.LONGEST:
        raise ValueError(f"rank {sender} announces an object of {length} bytes, the limit is {codec.LONGEST}")


def _unlike(rank: int, pickled: bool) -> str:
    return (f"rank {rank} {'sends a pickle' if pickled else 'does not pickle'}, and this rank "
            f"{'does not accept them' if pickled else 'does'}: allow_pickle (ARRAYCOMM_ALLOW_PICKLE=1 for arraycomm.distributed) "
            "must be the same on all ranks")


def _checked_tag(tag: int) -> int:
    found = arguments.tag(tag)
    if found >= _CONTENTS - _HEADS:
        raise ValueError(f"the tag of an object must be between 0 and 2**61 - 1, got {found}")
    return found


def _encode(obj: object, allow_pickle: bool) -> bytes:
    if not allow_pickle:
        return codec.encode(obj)
    data: bytes = importlib.import_module("pickle").dumps(obj)
    if len(data) > codec.LONGEST:
        raise ValueError(f"the object takes {len(data)} bytes pickled, the limit is {codec.LONGEST}")
    return data


def _object(data: memoryview, sender: int, allow_pickle: bool) -> Any:
    if allow_pickle:
        return importlib.import_module("pickle").loads(data)
    try:
        return codec.decode(data)
    except ValueError as error:
        raise ValueError(f"rank {sender} sent no object: {error}") from error


def _agree(communicator: Communicator, objs: Sequence[object], allow_pickle: bool,
           timeout: float | None) -> tuple[list[bytes], list[int]]:
    """This rank's encoded objects, and each rank's maximum length. Raises on all ranks if one rank cannot encode."""
    arguments.seconds(timeout)
    kind, data, problem = _PICKLED if allow_pickle else _SAFE, list[bytes](), None
    try:
        data = [_encode(obj, allow_pickle) for obj in objs]
    except Exception as error:  # catch all: an object's own pickling may raise anything
        kind, problem = _FAILED, error
    answers = gather_integers(communicator, [kind, max(map(len, data), default=0)], timeout)
    if problem is not None:
        raise problem
    kinds = [answer[0] for answer in answers]
    for rank, other in enumerate(kinds):
        if other == _FAILED:
            raise DistError(f"rank {communicator.rank} of {communicator.size} in group {communicator.name!r}: rank {rank} has "
                            "an object that cannot be sent; its own error says why. Nothing was sent, the group stays usable")
    if len(set(kinds)) > 1:
        odd = next(rank for rank, other in enumerate(kinds) if other != kind)
        raise ValueError(_unlike(odd, kinds[odd] == _PICKLED))
    for rank, (_, length) in enumerate(answers):
        _check_length(rank, length)
    return data, [answer[1] for answer in answers]


def _bytes(length: int) -> Buffer:
    return allocate((length,), DType.UINT8)


def _readable(data: bytes) -> Buffer:
    return as_bytes(resolve(data))


def _parts(whole: Buffer, sizes: Sequence[int], allow_pickle: bool) -> list[Any]:
    view, ends = memoryview(whole), itertools.accumulate(sizes, initial=0)
    return [_object(view[start:end], rank, allow_pickle) for rank, (start, end) in enumerate(itertools.pairwise(ends))]

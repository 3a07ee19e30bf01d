"""Collectives and messages of Python objects, as a part of Group.

Objects travel by codec.py, which carries plain data and arrays only. allow_pickle=True pickles them instead, which any
rank can misuse to run code in the others: all ranks must say so, or all get ValueError. First the ranks exchange lengths, so
a rank whose object cannot be sent is an error on all of them, and the group stays usable.
"""

from __future__ import annotations

import array
import importlib
from collections.abc import Sequence

from . import arguments, codec
from .backend import Communicator
from .buffer import Buffer
from .codec import as_bytes
from .dlpack import allocate, resolve
from .errors import DistError
from .exchange import gather_integers
from .typed import TYPE_CHECKING, Any
from .types import DType

_SAFE, _PICKLED, _FAILED = range(3)
_MESSAGES = 2**62  # tags from here on carry objects, so that no receive of an array takes one
_LENGTH = 8  # bytes of a length in front of an object


class ObjectCollectives:
    """The methods of Group that take and give objects. `timeout`: seconds for each step; None takes the group's."""

    rank: int
    size: int
    _communicator: Communicator
    if TYPE_CHECKING:
        all_gather: Any
        gather: Any
        scatter: Any
        broadcast: Any
        send: Any
        recv: Any

    def all_gather_object(self, obj: object, *, allow_pickle: bool = False, timeout: float | None = None) -> list[Any]:
        """Every rank's object, in rank order, on every rank."""
        data, sizes = _agree(self._communicator, [obj], allow_pickle, timeout)
        whole = _bytes(sum(sizes))
        self.all_gather(_readable(data[0]), counts=sizes, out=whole, timeout=timeout)
        return _parts(whole, sizes, allow_pickle)

    def gather_object(self, obj: object, root: int = 0, *, allow_pickle: bool = False,
                      timeout: float | None = None) -> list[Any] | None:
        """Every rank's object, in rank order, on `root`; None elsewhere."""
        root = arguments.root(root, self.size)
        data, sizes = _agree(self._communicator, [obj], allow_pickle, timeout)
        longest = max(sizes)
        whole = _bytes(longest * self.size) if self.rank == root else None
        self.gather(_readable(data[0].ljust(longest, b"\0")), root, out=whole, timeout=timeout)
        if whole is None:
            return None
        view = memoryview(whole)
        return [_object(view[r * longest : r * longest + size], r, allow_pickle) for r, size in enumerate(sizes)]

    def broadcast_object(self, obj: object = None, root: int = 0, *, allow_pickle: bool = False,
                         timeout: float | None = None) -> Any:
        """The root's object on every rank; what the others give is ignored. The root gets its own object back."""
        root = arguments.root(root, self.size)
        mine = [obj] if self.rank == root else []
        data, sizes = _agree(self._communicator, mine, allow_pickle, timeout)
        whole = _bytes(sizes[root])
        if self.rank == root:
            memoryview(whole)[:] = data[0]
        self.broadcast(whole, root, out=whole, timeout=timeout)
        return obj if self.rank == root else _object(memoryview(whole), root, allow_pickle)

    def scatter_objects(self, objs: Sequence[object] | None = None, root: int = 0, *, allow_pickle: bool = False,
                        timeout: float | None = None) -> Any:
        """Object r of the root's sequence on rank r. ValueError at the root unless there is one for every rank."""
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
        return _object(view[_LENGTH : _LENGTH + int.from_bytes(view[:_LENGTH], "little")], root, allow_pickle)

    def send_object(self, obj: object, dest: int, tag: int = 0, *, allow_pickle: bool = False,
                    timeout: float | None = None) -> None:
        """Sends an object to rank `dest`, whose recv_object() takes it."""
        _check_tag(tag)
        data = _encode(obj, allow_pickle)
        head = array.array("q", [_PICKLED if allow_pickle else _SAFE, len(data)])
        self.send(head, dest, _MESSAGES + tag, timeout=timeout)
        self.send(_readable(data), dest, _MESSAGES + tag, timeout=timeout)

    def recv_object(self, source: int | None = None, tag: int = 0, *, allow_pickle: bool = False,
                    timeout: float | None = None) -> tuple[Any, int]:
        """Receives an object and gives (object, source). source: a rank, or None for any.

        ValueError when it was pickled and allow_pickle is False, or the other way round; it is gone then.
        """
        _check_tag(tag)
        head = array.array("q", [0, 0])
        sender = self.recv(source, _MESSAGES + tag, out=head, timeout=timeout).source
        _check_length(sender, head[1])
        data = _bytes(head[1])
        self.recv(sender, _MESSAGES + tag, out=data, timeout=timeout)
        if (head[0] == _PICKLED) != allow_pickle:
            raise ValueError(_unlike(sender, head[0] == _PICKLED))
        return _object(memoryview(data), sender, allow_pickle), sender


def _check_length(sender: int, length: int) -> None:
    if not 0 <= length <= codec.LONGEST:
        raise ValueError(f"rank {sender} announces an object of {length} bytes, the limit is {codec.LONGEST}")


def _unlike(rank: int, pickled: bool) -> str:
    return (f"rank {rank} {'sends a pickle' if pickled else 'does not pickle'}, and this rank "
            f"{'does not accept them' if pickled else 'does'}: allow_pickle (ARRAYCOMM_ALLOW_PICKLE=1 for arraycomm.distributed) "
            "must be the same on all ranks")


def _check_tag(tag: int) -> None:
    arguments.integer("tag", tag)
    if not 0 <= tag < _MESSAGES:
        raise ValueError(f"the tag of an object must be between 0 and 2**62 - 1, got {tag}")


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
    """This rank's objects as bytes, and the length of each rank's longest. Raises on all ranks when one cannot."""
    arguments.seconds(timeout)
    kind, data, problem = _PICKLED if allow_pickle else _SAFE, list[bytes](), None
    try:
        data = [_encode(obj, allow_pickle) for obj in objs]
    except Exception as error:  # whatever an object's own pickling raises
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
    view, start, found = memoryview(whole), 0, []
    for rank, size in enumerate(sizes):
        found.append(_object(view[start : start + size], rank, allow_pickle))
        start += size
    return found

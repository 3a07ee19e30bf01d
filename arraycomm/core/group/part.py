"""What the classes of which Group is made have in common."""

from __future__ import annotations

from arraycomm._engine import ShortcutMethod

from ..base.typed import TYPE_CHECKING, Any, Protocol
from ..interface.kinds import KINDS, parameters

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    class SupportsDLPack(Protocol):
        """An array of any library that speaks DLPack."""

        def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    class SupportsBuffer(Protocol):
        """Memory that speaks the buffer protocol."""

        def __buffer__(self, flags: int, /) -> memoryview: ...

    Array = TypeVar("Array", bound=SupportsDLPack | SupportsBuffer)  # results are of the arguments' type
    _Function = TypeVar("_Function", bound=Callable[..., Any])


class Part:
    """Their base: what they know of each other, which Group sets."""

    rank: int
    size: int
    ranks: tuple[int, ...]
    name: str
    backend: str
    timeout: float
    if TYPE_CHECKING:
        _asked: dict[tuple[int, ...], int]
        _any: Any = None  # what only Group and the other parts have the types of
        _communicator = _movers = _routes = _batch = _first = _part = _started = _readable = _movable = _collective = _any
        all_gather = gather = scatter = broadcast = isend = irecv = close = _any


def short(function: _Function) -> _Function:
    """A method whose plain calls are one native step. Of isend and irecv that gives a Work at once.

    What that declines runs the function itself, the slow path, which is the reference and explains what is wrong.
    """
    name = function.__name__
    begins = name not in KINDS
    method: Any = ShortcutMethod(KINDS[name[begins:]].number, *parameters(function), function, begins, False)
    return method  # type: ignore[no-any-return]


def plain(method: Any) -> Any:
    """The native step alone, of a method that short() has made: NotImplemented where a slow path would be needed, and nothing was
    sent. So who has a slow path of its own takes no error for a refusal: it may be a signal handler's, after the operation."""
    return ShortcutMethod(method.kind, *parameters(method.__wrapped__), None, False, False)

"""The base of Group's mixin classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from arraycomm._engine import ShortcutMethod

from ..interface.kinds import KINDS, parameters


class SupportsDLPack(Protocol):
    """An array of any library that supports DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class SupportsBuffer(Protocol):
    """Memory that supports the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


Array = TypeVar("Array", bound=SupportsDLPack | SupportsBuffer)  # results have the argument's type
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Part:
    """The base of the mixins: attributes that Group sets."""

    rank: int
    size: int
    ranks: tuple[int, ...]
    name: str
    backend: str
    timeout: float
    if TYPE_CHECKING:
        _asked: dict[tuple[int, ...], int]
        _any: Any = None  # attributes typed in Group and the other mixins
        _communicator = _movers = _routes = _batch = _first = _part = _started = _readable = _movable = _collective = _any
        all_gather = gather = scatter = broadcast = isend = irecv = close = _any


def short(function: _Function) -> _Function:
    """A method with a native fast path for plain calls. For isend and irecv it returns a Work at once.

    If the fast path declines, the function itself runs: the slow path, which defines the semantics and raises errors.
    """
    name = function.__name__
    begins = name not in KINDS
    method: Any = ShortcutMethod(KINDS[name[begins:]].number, *parameters(function), function, begins)
    return method  # type: ignore[no-any-return]


def plain(method: Any) -> Any:
    """The native step alone, of a method that short() has made: NotImplemented where a slow path would be needed, and nothing was
    sent. So who has a slow path of its own takes no error for a refusal: it may be a signal handler's, after the operation."""
    return ShortcutMethod(method.kind, *parameters(method.__wrapped__), None, False)

"""Groups with watchers: a trace (trace.py), checks before collectives, a profiler's labels.

attach() and detach() change the group's class, so that a group without watchers has no overhead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from arraycomm._engine import ShortcutMethod

from ..arrays.dlpack import resolve
from ..arrays.types import DType
from ..base.errors import DistError
from ..group.group import Group
from ..group.work import Work
from ..interface.kinds import COLLECTIVES, RECORDED, parameters


class Watcher:
    """Callbacks for every operation of a group, in the calling thread. The defaults do nothing."""

    def begin(self, call: Call) -> Any:
        """Before the operation. The result is passed to end(). An exception is raised instead of the operation."""

    def begun(self, token: Any) -> None:
        """An asynchronous call is about to return its Work."""

    def waits(self, token: Any, still: bool = True) -> None:
        """A thread begins to wait for an asynchronous operation, or stops waiting while the operation is pending."""

    def end(self, token: Any, error: BaseException | None) -> None:
        """After the operation; for an asynchronous one, when wait() or done() first reports completion, in any thread."""

    def follow(self, child: Group) -> None:
        """A subgroup was made; the watcher may attach() to it. Called on all its members."""

    def closed(self, group: Group) -> None:
        """After close()."""


class Call:
    """One call of an operation.

    name; group; parameters (as given, by name); sequence (which collective of the group, from 1; 0 for messages);
    asynchronous.
    """

    __slots__ = ("asynchronous", "group", "name", "parameters", "sequence")

    def __init__(self, name: str, group: Watched, parameters: dict[str, Any]) -> None:
        self.name, self.group, self.parameters = name, group, parameters
        self.asynchronous = name in ("isend", "irecv") or bool(parameters.get("async_op"))
        self.sequence = 0
        if name in COLLECTIVES:
            group._count += 1
            self.sequence = group._count

    def array(self) -> tuple[str, tuple[int, ...], int] | None:
        """(dtype, shape, bytes) of this rank's input array or its template; None without an array."""
        x = self.given()
        return None if x is None else _traits(x)

    def given(self) -> Any:
        """This rank's input array, or else its template or its output; None without any."""
        return next((x for name in ("x", "like", "out") if (x := self.parameters.get(name)) is not None), None)


_labels: dict[Any, str] = {}  # cache, by a library's dtype: the lookup takes longer than an operation


def _label(dtype: Any) -> str:
    name = DType(dtype).label if isinstance(dtype, int) else str(getattr(dtype, "name", dtype))
    return _labels.setdefault(dtype, name.rpartition(".")[2])


def _traits(x: Any) -> tuple[str, tuple[int, ...], int] | None:
    try:
        if not hasattr(x, "dtype") or not hasattr(x, "nbytes"):
            x = resolve(x)
        return _labels.get(x.dtype) or _label(x.dtype), tuple(x.shape), int(x.nbytes)
    except (TypeError, ValueError):
        return None  # not an array: the operation raises


class Watched(Group):
    """A Group with watchers; see attach()."""

    _watchers: tuple[Watcher, ...]
    _count = 0  # collectives while it was watched
    _forgotten: list[tuple[Work[Any], _Tokens]]  # operations whose Works were dropped before completion was reported

    def _part(self, *args: Any, **named: Any) -> Group:
        child = super()._part(*args, **named)
        for watcher in self._watchers:
            watcher.follow(child)
        return child

    def _end(self, reason: str) -> None:
        try:
            super()._end(reason)
        finally:
            if self.closed:  # also after an error, of a broadcast that no peer called
                _tell_forgotten(self, len(self._forgotten))
                for watcher in self._watchers:
                    watcher.closed(self)

    def _run(self, name: str, plain: Callable[..., Any], parameters: dict[str, Any]) -> Any:
        _tell_forgotten(self, 2)  # adds one and removes up to two: completed operations cannot accumulate
        call = Call(name, self, parameters)
        tokens: _Tokens = []
        try:
            tokens.extend((watcher, watcher.begin(call)) for watcher in self._watchers)
            result = plain(self, **parameters)
        except BaseException as error:
            if call.sequence and isinstance(error, (TypeError, ValueError)):
                self._count -= 1  # a local argument error, nothing was sent
            _end(tokens, error)
            raise
        if not call.asynchronous:
            _end(tokens, None)
            return result
        for watcher, token in reversed(tokens):
            watcher.begun(token)
        work = Work(_Pending(self, result, tokens), result.result)
        if self._batch:
            self._batch[-1] = work
        return work


_Tokens = list["tuple[Watcher, Any]"]


def _end(tokens: _Tokens, error: BaseException | None) -> None:
    while tokens:
        watcher, token = tokens.pop()
        watcher.end(token, error)


class _Pending:
    """A Work that calls the watchers when its completion is reported."""

    def __init__(self, group: Group, work: Work[Any], tokens: _Tokens) -> None:
        self._group, self._work, self._tokens = group, work, tokens

    def __del__(self) -> None:
        if self._tokens and isinstance(self._group, Watched):
            self._group._forgotten.append((self._work, self._tokens))

    def wait(self, timeout: float | None = None) -> None:
        for watcher, token in tuple(self._tokens):
            watcher.waits(token)
        self._end(timeout)

    def _end(self, timeout: float | None = None) -> None:
        try:
            self._work.wait(timeout)
        except DistError as error:
            _end(self._tokens, error)
            raise
        except BaseException:  # still pending: a timeout or a signal
            for watcher, token in tuple(self._tokens):
                watcher.waits(token, False)
            raise
        _end(self._tokens, None)

    def done(self) -> bool:
        done = self._work.done()
        if done:
            try:
                self._end()
            except DistError:
                return True  # the watchers are notified; wait() raises it again
        return done

    def source(self) -> tuple[int, int]:
        return self._work.source()


def _tell_forgotten(group: Watched, most: int) -> None:
    """Notifies the watchers of dropped operations that have completed."""
    for _ in range(min(most, len(group._forgotten))):
        with contextlib.suppress(IndexError):  # another thread removed it
            _Pending(group, *group._forgotten.pop(0)).done()  # if still pending, it is put back


def _receive(group: Group, **parameters: Any) -> Any:
    return Group.irecv(group, **parameters).result()


def _watched(name: str) -> Callable[..., Any]:
    short: ShortcutMethod = getattr(Group, name)
    plain = _receive if name == "recv" else short
    names, count = parameters(short.__wrapped__)
    positional = names[:count]

    def method(self: Watched, *args: Any, **named: Any) -> Any:
        # The plain method raises for too many or duplicate arguments.
        parameters = dict(zip(positional, args, strict=False))
        if len(args) > len(positional) or not parameters.keys().isdisjoint(named):
            return getattr(Group, name)(self, *args, **named)
        begins = "i" + name if name in ("send", "recv") and self._batch is not None else name
        # The class may have been changed back meanwhile: no watcher is left.
        return Watched._run(self, begins, getattr(Group, begins) if begins != name else plain, {**parameters, **named})

    method.__name__, method.__doc__ = name, plain.__doc__
    return method


for _name in RECORDED:
    setattr(Watched, _name, _watched(_name))
    if hasattr(Group, f"_plain_{_name}"):
        setattr(Watched, f"_plain_{_name}", lambda *_, **__: NotImplemented)


def attach(group: Group, watcher: Watcher) -> None:
    """Adds a watcher to the group."""
    if not isinstance(group, Watched):
        group.__dict__.update(_watchers=(), _forgotten=[])  # before another thread's call reads them
        group.__class__ = Watched
        assert isinstance(group, Watched)  # for the type checker
    group._watchers = (*group._watchers, watcher)


def detach(group: Group, watcher: Watcher) -> None:
    """Removes the watcher. No effect if it is not attached."""
    if isinstance(group, Watched):
        group._watchers = tuple(other for other in group._watchers if other is not watcher)
        if not group._watchers:
            group._forgotten.clear()
            group.__class__ = Group  # type: ignore[assignment]

"""Hooks of a ProcessGroup: functions that are called before and after each of its operations is issued, and when it fails.

A group without hooks has no overhead: the first hook attaches a watcher to its core groups (core/diagnostics/watch.py), which
reports the operations that this package's functions and the group's methods begin, once per operation of the core.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partialmethod

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.base.errors import GroupError
from arraycomm.core.base.log import log
from arraycomm.core.base.record import Record
from arraycomm.core.base.typed import Any
from arraycomm.core.diagnostics.watch import Call, Watcher
from arraycomm.core.interface.kinds import KINDS, RECORDED

from .options import method

_TORCHS = ("SEND", "RECV", "BROADCAST", "ALLREDUCE", "REDUCE", "ALLGATHER", "REDUCE_SCATTER", "ALLTOALL", "BARRIER", "SCATTER",
           "GATHER")
# Names of operations. All forms of a collective (lists, single output) have one name. Numbers continue after torch's.
_enumeration: Any = enum.IntEnum  # as Any: type checkers want literal names
HookOpName = _enumeration("HookOpName", {name: number for number, name in enumerate(_TORCHS)} | {
    kind.name.upper(): kind.number for kind in KINDS.values() if kind.number >= len(_TORCHS)})


_NAMES = {name: HookOpName[method(name if name in KINDS else name.removeprefix("i")).upper()] for name in RECORDED}
_OWN_TAGS = 2**62  # tags from here on are reserved for this package's messages of objects


class PreHookArgs(Record):
    """name; op_id (counts the group's operations); the arrays that are read and written.

    Arrays are the caller's where the engine uses them as they are, otherwise what it uses instead: a list that is joined,
    a strided array that is packed.
    """

    name: enum.IntEnum  # a HookOpName
    op_id: int
    input_tensors: list[Any]
    output_tensors: list[Any]


PostHookArgs = PreHookArgs  # the same fields


class Hooks(Watcher):
    """The hooks of one group, by hook_id, as a watcher of its core groups. Groups that are split off have their own hooks."""

    def __init__(self) -> None:
        self.pre: dict[int, Callable[[PreHookArgs], Any]] = {}
        self.post: dict[int, Callable[[PostHookArgs], Any]] = {}
        self.abort: dict[int, Callable[[], Any]] = {}
        self.failed = False  # the abort hooks have run
        self._count = 0

    def begin(self, call: Call) -> list[PostHookArgs]:
        """The returned list is emptied after the post hooks have run."""
        if call.parameters.get("tag", 0) >= _OWN_TAGS:
            return []
        given, out = call.parameters.get("x"), call.parameters.get("out")
        args = PreHookArgs(_NAMES[call.name], self._count, [] if given is None else [_array(given)],
                           [] if out is None else [_array(out)])
        self._count += 1
        for _, hook in sorted(self.pre.items()):
            hook(args)
        return [args]

    def begun(self, token: list[PostHookArgs]) -> None:
        while token:
            args = token.pop()
            for _, hook in sorted(self.post.items()):
                hook(args)

    def end(self, token: list[PostHookArgs], error: BaseException | None) -> None:
        if isinstance(error, GroupError):
            self.run_abort()
        elif error is None:
            self.begun(token)

    def run_abort(self) -> None:
        """Runs once per group. A hook's exception is logged, and the failure is raised as before."""
        if self.failed:
            return
        self.failed = True
        for number, hook in sorted(self.abort.items()):
            try:
                hook()
            except Exception as error:
                log().warning("abort hook %d raised %s: %s", number, type(error).__name__, error)


def _array(x: Any) -> Any:
    if not isinstance(x, Buffer):
        return x
    return x.owner if hasattr(x.owner, "__dlpack__") else x


class Hooked:
    """What ProcessGroup inherits. A hook_id is a number of the caller's own; a hook with the same one is replaced.

    Hooks are called in the order of their numbers, in the thread that calls the operation. Raises TypeError for what is no
    number or cannot be called.
    pre: before each operation is issued; what a hook raises is raised instead of the operation. post: after each operation was
    issued, a Work may still be under way; not when the call raised. abort: once, when an operation fails or times out, or before
    abort().
    """

    _hooks: Hooks | None = None

    def _register(self: Any, kind: str, hook_id: int, hook: Callable[..., Any]) -> None:
        if not hasattr(hook_id, "__index__"):
            raise TypeError(f"register_{kind}_hook: hook_id is an int, got {hook_id!r}")
        if not callable(hook):
            raise TypeError(f"register_{kind}_hook: the hook cannot be called, got {hook!r}")
        if self._hooks is None:
            self._hooks = Hooks()
            self._watch(self._hooks)
        setattr(self._hooks, kind, {**getattr(self._hooks, kind), int(hook_id): hook})  # copied: other threads may read it

    def _unregister(self, kind: str, hook_id: int) -> None:
        if self._hooks is not None:
            there = getattr(self._hooks, kind)
            setattr(self._hooks, kind, {number: hook for number, hook in there.items() if number != hook_id})

    register_pre_hook = partialmethod(_register, "pre")
    register_post_hook = partialmethod(_register, "post")
    register_abort_hook = partialmethod(_register, "abort")
    unregister_pre_hook = partialmethod(_unregister, "pre")
    unregister_post_hook = partialmethod(_unregister, "post")
    unregister_abort_hook = partialmethod(_unregister, "abort")

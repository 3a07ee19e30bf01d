"""Hooks of a ProcessGroup: functions that are called before and after each of its operations is issued, and when it fails.

A group without hooks has no overhead: the first hook attaches a watcher to its core groups (core/diagnostics/watch.py), which
reports the operations that this package's functions and the group's methods begin, once per operation of the core.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.base.errors import GroupError
from arraycomm.core.base.log import log
from arraycomm.core.diagnostics.watch import Call, Watcher
from arraycomm.core.interface.kinds import KINDS, RECORDED

from .options import method


class HookOpName(enum.IntEnum):
    """Names of operations for hooks. All forms of a collective (lists, single output) have one name.

    - Blocks: never; it is an enumeration.
    - Errors: KeyError for a name that does not exist.

    Examples:
        >>> dist2.HookOpName["ALLREDUCE"].name
        'ALLREDUCE'
    """

    SEND, RECV, BROADCAST, ALLREDUCE, REDUCE, ALLGATHER, REDUCE_SCATTER, ALLTOALL, BARRIER, SCATTER, GATHER = range(11)
    SCAN, EXSCAN = 11, 12  # not torch's


_NAMES = {name: HookOpName[method(name if name in KINDS else name.removeprefix("i")).upper()] for name in RECORDED}
_OWN_TAGS = 2**62  # tags from here on are reserved for this package's messages of objects


class PreHookArgs(NamedTuple):
    """What a hook before an operation gets; PostHookArgs has the same fields.

    Arrays are the caller's where the engine uses them as they are, otherwise the engine's own: a list that is joined, a strided
    array that is packed.

    Attributes:
        name: a HookOpName.
        op_id: counts the group's operations, from 0.
        input_tensors: the arrays that are read.
        output_tensors: the arrays that are written.

    - Blocks: never; a tuple of the four.
    - Errors: none; it is a value.

    Examples:
        >>> pg = dist2.new_group("gloo", timedelta(seconds=60), "cpu", store=dist.HashStore(), rank=0, world_size=1)
        >>> pg.register_pre_hook(1, lambda args: print(args.name.name, args.op_id, args.input_tensors, args.output_tensors))
        >>> pg.barrier().wait()
        BARRIER 0 [] []
        True
        >>> pg.shutdown()
    """

    name: enum.IntEnum  # a HookOpName
    op_id: int
    input_tensors: list[Any]
    output_tensors: list[Any]


PostHookArgs = PreHookArgs
"""What a hook after an operation gets: the fields of PreHookArgs."""


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
    """The methods for hooks, as a base class of ProcessGroup."""

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

    def register_pre_hook(self, hook_id: int, hook: Callable[..., Any]) -> None:
        """Calls hook(args), a PreHookArgs, before each operation. What the hook raises is raised instead of the operation.

        Hooks run in the order of their numbers, in the thread that calls the operation. A hook with the same number is replaced.

        - Blocks: never; the hook is called later.
        - Errors: TypeError for a hook_id that is no int and for a hook that cannot be called.
        """
        self._register("pre", hook_id, hook)

    def register_post_hook(self, hook_id: int, hook: Callable[..., Any]) -> None:
        """Calls hook(args), a PostHookArgs, after each operation has begun; its Work may not have ended. Not after an error.

        Hooks run in the order of their numbers, in the thread that calls the operation. A hook with the same number is replaced.

        - Blocks: never; the hook is called later.
        - Errors: TypeError for a hook_id that is no int and for a hook that cannot be called.
        """
        self._register("post", hook_id, hook)

    def register_abort_hook(self, hook_id: int, hook: Callable[..., Any]) -> None:
        """Calls hook() once, when an operation fails or its timeout passes, or before abort().

        Hooks run in the order of their numbers, in the thread that calls the operation. A hook with the same number is replaced.

        - Blocks: never; the hook is called later.
        - Errors: TypeError for a hook_id that is no int and for a hook that cannot be called.
        """
        self._register("abort", hook_id, hook)

    def unregister_pre_hook(self, hook_id: int) -> None:
        """Removes the pre hook of this number.

        - Blocks: never; nothing is sent.
        - Errors: none; without such a hook nothing happens.
        """
        self._unregister("pre", hook_id)

    def unregister_post_hook(self, hook_id: int) -> None:
        """Removes the post hook of this number.

        - Blocks: never; nothing is sent.
        - Errors: none; without such a hook nothing happens.
        """
        self._unregister("post", hook_id)

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Removes the abort hook of this number.

        - Blocks: never; nothing is sent.
        - Errors: none; without such a hook nothing happens.
        """
        self._unregister("abort", hook_id)

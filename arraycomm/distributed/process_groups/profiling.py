"""Labels for torch.profiler: if torch is loaded and a profiler runs, operations appear under torch's names for them
("c10d::allreduce_" for the call, "gloo:all_reduce" for the operation). The second label ends when the program sees the
operation's end, which for a synchronous call is the call's return; it is asynchronous (`is_async`) in both cases, as in torch.
With record_shapes=True it has the shapes of the call's tensors, if this torch supports that.

Without a profiler there are no labels and no overhead: the fast path reads torch's flag and takes the slow path if it is set.
The slow path attaches the labels to the group (world.member); the first operation after the profiler's end detaches them.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from arraycomm._engine import lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DEVICE_TYPES
from arraycomm.core.base.log import log
from arraycomm.core.diagnostics.watch import Call, Watched, Watcher, attach, detach
from arraycomm.core.group.group import Group
from arraycomm.core.interface.kinds import KINDS

from ..operations.methods import untimed
from . import devices, options
from .backend import BackendConfig
from .process_group import ProcessGroup
from .world import state


def follow(group: ProcessGroup, function: str) -> None:
    """Labels the group's operations while the profiler runs; this thread's next operations get this function's name."""
    _given.function = function
    core = untimed(group.core)
    if not isinstance(core, Watched) or not any(isinstance(watcher, Labels) for watcher in core._watchers):
        attach(core, Labels(core, group._config))


class Labels(Watcher):
    """The labels of one group, as a watcher."""

    def __init__(self, group: Group, config: BackendConfig) -> None:
        self._group, self._config = group, config

    def begin(self, call: Call) -> Any:
        """The token has labels (the call's, entered) and lasting: the inner label of an asynchronous call, or None."""
        if not state.profiler._is_profiler_enabled:
            detach(self._group, self)
            return SimpleNamespace(labels=[], lasting=None)
        outer, inner = names(call, self._backend(call))
        runs = _runs(state.profiler)
        parameters = call.parameters
        given = parameters.get("x") if call.sequence else call.given()
        told = SimpleNamespace(labels=[_label(outer), _label(inner, *_tensors(given))], lasting=None)
        if runs:  # the outer label ends before the inner one: that marks the inner one as asynchronous
            told.lasting = _Lasting(told.labels.pop(), runs)
            self.begun(told)
        return told

    def _backend(self, call: Call) -> str:
        there = self._config._names()
        x = call.given()
        if len(there) == 1 or x is None:
            return there[0]
        code = devices.of_array(x)
        return next((name for kind, name in self._config.device_backend_map.items() if code in DEVICE_TYPES[kind]), there[0])

    def begun(self, token: Any) -> None:
        """Ends the labels in reverse order, in the thread that began them: otherwise the profiler confuses them."""
        while token.labels:
            token.labels.pop().__exit__(None, None, None)

    def end(self, token: Any, error: BaseException | None) -> None:
        self.begun(token)
        lasting, token.lasting = token.lasting, None
        if lasting is not None:
            lasting.end()

    def closed(self, group: Group) -> None:
        detach(group, self)


class _Lasting:
    """An entered label that ends with a torch future.

    Its end is written to the event buffer of the profiler that ran at its begin, which is freed when that profiler stops. So the
    label may end only before that, and in its own thread, the only one that can stop that profiler. Other labels are never
    ended, and never freed, because torch ends a label that is freed.
    """

    def __init__(self, label: Any, runs: list[int]) -> None:
        self._future = sys.modules["torch"].futures.Future()
        self._runs, self._began = runs, (runs[0], threading.get_ident())
        _unended.add(self)
        label._call_end_callbacks_on_future(self._future)

    def end(self) -> None:
        if not state.profiler._is_profiler_enabled or self._began != (self._runs[0], threading.get_ident()):
            return
        try:
            ended = _ending().submit(self._future.set_result, None)
        except RuntimeError:  # the interpreter is shutting down: no thread can be started, and the result is not needed
            self._future.set_result(None)
        else:
            ended.result()
        _unended.discard(self)


_unended: set[_Lasting] = set()


@functools.cache
def _runs(profiler: Any) -> list[int] | None:
    """[the count of profiler starts since the first such label]: torch's flag does not distinguish one run from the next."""
    runs, start = [0], getattr(profiler, "_run_on_profiler_start", None)
    if start is None:  # a private name, which this version of torch lacks
        log().warning("torch.profiler's labels of asynchronous operations end with their calls: this torch does not report when "
                      "a profiler starts")
        return None

    def counted() -> None:
        runs[0] += 1
        start()

    profiler._run_on_profiler_start = counted
    return runs


@functools.cache
def _ending() -> ThreadPoolExecutor:
    """The thread in which such labels end: the profiler then treats them as asynchronous, not as nested calls."""
    return ThreadPoolExecutor(1, "arraycomm profiler labels")


os.register_at_fork(after_in_child=_ending.cache_clear)


def _tensors(x: Any) -> Iterator[Any]:
    """The torch tensors of an array or of a Buffer; complex ones as pairs of reals, as in torch's gloo."""
    torch = sys.modules["torch"]
    if isinstance(x, torch.Tensor):
        yield torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    elif isinstance(x, Buffer):
        # A joined Buffer holds its tensors behind the joined memory.
        for owner in x.owner[1:] if isinstance(x.owner, tuple) else (x.owner,):
            yield from _tensors(owner)


def _label(name: str, *tensors: Any) -> Any:
    """Entered, with the tensors whose shapes the profiler keeps when it was asked to (record_shapes)."""
    torch, label = sys.modules["torch"], state.profiler.record_function(name)
    try:
        label.record = torch._C._autograd._record_function_with_args_enter(name, *tensors)
    except (AttributeError, TypeError) as error:  # a private name, which differs in this version of torch
        _without_shapes(torch.__version__, str(error))
        label.__enter__()
    return label


@functools.cache
def _without_shapes(version: str, why: str) -> None:
    log().warning("torch.profiler's labels of arraycomm's operations have no shapes with torch %s: %s", version, why)


_given = threading.local()  # .name: set by record_comm(); .function: the function called last


@contextmanager
def record_comm(name: str) -> Iterator[None]:
    """A context in which this thread's operations have this label for torch's profiler, instead of "gloo:all_reduce" and so on.

    - Blocks: never; nothing is sent.
    - Errors: none; without a profiler it has no effect.

    Examples:
        On each of two ranks:

        >>> with dist.record_comm("gradients"):
        ...     dist.barrier()
    """
    before, _given.name = getattr(_given, "name", None), name
    try:
        yield
    finally:
        _given.name = before


def names(call: Call, backend: str) -> tuple[str, str]:
    """The outer and the inner label. The outer one names the called function if several functions are one in the core."""
    kind = call.name if call.name in KINDS else call.name.removeprefix("i")
    function, plain = getattr(_given, "function", ""), kind
    operator = options.method(kind) + ("" if KINDS[kind].gets == lib.ACOMM_NOBODY else "_")
    if kind == "recv" and call.parameters.get("source") is None:
        operator, plain = "recv_any_source_", "recvAnySource"
    elif function == f"{kind}_single":
        operator = f"{options.BASE[kind]}_"
    elif function == f"{kind}_coalesced":
        operator = f"{options.method(kind)}_coalesced_"
    return f"c10d::{operator}", getattr(_given, "name", None) or f"{backend}:{plain}"

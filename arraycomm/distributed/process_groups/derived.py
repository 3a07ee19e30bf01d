"""Adapters from Backend.register_backend()'s functions to the core: for a Communicator, or for a ProcessGroup of a program's
class, by the methods that the class defines.

The methods are called as torch calls them: with lists of arrays, which share the caller's memory, and an options object. Arrays
are torch's if torch is loaded, else NumPy's.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import DEVICE_TYPES, DType
from arraycomm.core.arrays.types import ReduceOp as CoreReduceOp
from arraycomm.core.bootstrap.rendezvous import Rendezvous
from arraycomm.core.interface.backend import Communicator
from arraycomm.core.interface.kinds import Kind

from ..operations.methods import Operations
from ..operations.reduce_op import ReduceOp, _make_nccl_premul_sum
from . import options
from .backend import Backend, Plugin
from .members import Absent

if TYPE_CHECKING:
    from .process_group import ProcessGroup


class Unopened(Absent):
    """The core group of a program's ProcessGroup until a backend's function returns it to init_process_group() or new_group()."""

    backend = "undefined"
    advice = ("the functions of arraycomm.distributed do not know this ProcessGroup: make it in the function that "
              "Backend.register_backend() is given, and call init_process_group() or new_group()")

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


class Operation:
    """Adapts a program's Work to the core's Work."""

    def __init__(self, work: Any, source: tuple[int, int, int] = (-1, 0, 0)) -> None:
        self._work, self._source = work, source

    def wait(self, timeout: float | None = None) -> None:
        if self._work is None:
            return
        if timeout is None:
            self._work.wait()
        elif not self.done():
            self._work.wait(timedelta(seconds=timeout))

    def done(self) -> bool:
        return self._work is None or bool(self._work.is_completed())

    def source(self) -> tuple[int, int, int]:
        rank, tag, nbytes = self._source
        return int(self._work.source_rank()) if rank < 0 else rank, tag, nbytes


class DerivedCommunicator:
    """Follows arraycomm.core.interface.backend.Communicator."""

    shortcut = None

    def __init__(self, group: ProcessGroup) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.name, self.closed = type(group).__name__, False
        self.about = f"{type(group).__module__}.{type(group).__qualname__}"

    def _method(self, *names: str) -> tuple[str, Any]:
        for name in names:
            found = getattr(type(self.group), name, None)
            if found is not None and found is not getattr(Operations, name, None):
                return name, getattr(self.group, name)
        raise RuntimeError(f"ProcessGroup {self.name} does not support {names[0]}: its class does not define "
                           f"{' or '.join(names)}")

    def _call(self, name: str, *args: Any, async_op: bool = False) -> Operation | None:
        operation = Operation(self._method(name)[1](*args))
        if async_op:
            return operation
        operation.wait()
        return None

    # ---- collectives ----

    def collective(self, kind: Kind, src: Any, dst: Any, op: CoreReduceOp | None = None, root: int = -1,
                   counts: Sequence[int] | None = None, receives: Sequence[int] | None = None, *, layout: int = 0,
                   timeout: float | None = None, async_op: bool = False) -> Operation | None:
        opts_class = options.of(kind.name)
        if opts_class is None:
            raise RuntimeError(f"ProcessGroup {self.name} does not support {kind.name}, which torch's classes lack")
        of_lists = options.method(kind.name)
        whole = (f"{kind.name}_single", options.BASE[kind.name]) if kind.name in options.BASE else ()
        name, _ = self._method(of_lists, *whole)
        given: tuple[Any, ...]
        if not (kind.cuts or kind.joins):
            given = ([_array(dst) if src is None else _array(src) + 0 if dst is None else _moved(src, dst)],)  # not over src
        elif name != of_lists:  # the variants on whole arrays
            each = (list(receives or ()), list(counts or ())) if kind.cuts and kind.joins else ()
            given = (_array(dst), _array(src), *each)
        elif kind.cuts and kind.joins:
            given = (self._parts(dst, receives), self._parts(src, counts))
        elif kind.joins:
            given = ([] if dst is None else [self._parts(dst, counts, src.shape)], [_array(src)])
        else:
            given = ([_array(dst)], [] if src is None else [self._parts(src, counts, dst.shape)])
        opts = _opts(opts_class, timeout, op, root if kind.rooted else None)
        return self._call(name, *given, opts, async_op=async_op)

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Operation | None:
        return self._call("barrier", _opts(options.BarrierOptions, timeout), async_op=async_op)

    # ---- point to point ----

    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Operation | None:
        return self._call("send", [_array(src)], peer, tag, async_op=async_op)

    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Operation:
        place = () if peer is None else (peer,)
        work = self._method("recv_anysource" if peer is None else "recv")[1]([_array(dst)], *place, tag)
        operation = Operation(work, (-1 if peer is None else peer, tag, dst.nbytes))
        if not async_op:
            operation.wait()
        return operation

    def batch(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    # ---- the group ----

    def symmetric(self, nbytes: int, *, timeout: float | None = None) -> None:
        return None

    def expose(self, buffer: Buffer) -> None:
        return None

    def split(self, members: Sequence[int], name: str, *, timeout: float) -> Any:
        raise RuntimeError(f"ProcessGroup {self.name} cannot be split: make the other group by new_group(), which calls the "
                           "backend's function")

    def check_peers(self) -> None:
        """Does nothing: a program's class has no such check."""

    def abort(self, reason: str) -> None:
        """Does nothing: a class that can abort defines ProcessGroup.abort()."""

    def close(self, reason: str = "") -> None:
        self.closed = True  # destroy_process_group() calls the class's shutdown()

    def _parts(self, buffer: Buffer, counts: Sequence[int] | None, shape: Sequence[int] = ()) -> list[Any]:
        """One array per rank: of this shape if the element count fits, else flat."""
        sizes = [buffer.count // self.size] * self.size if counts is None else list(counts)
        starts = [sum(sizes[:rank]) for rank in range(self.size)]
        found = [_array(buffer.part(start, (count,))) for start, count in zip(starts, sizes, strict=True)]
        return [x.reshape(shape) if shape and counts is None else x for x in found]


def _opts(kind: Any, timeout: float | None, op: CoreReduceOp | None = None, root: int | None = None) -> Any:
    opts = kind()
    if timeout is not None:
        opts.timeout = timedelta(seconds=timeout)
    if op is not None:
        opts.reduceOp = (_make_nccl_premul_sum(op.factor) if op.name == "premul_sum" else getattr(ReduceOp, op.name.upper()))
    if root is not None:
        opts.rootRank = root
    return opts


def _array(buffer: Buffer) -> Any:
    """An array over the buffer's memory; a copy if the buffer is read-only."""
    label = DType(buffer.dtype).label
    memory: Any = bytearray(buffer) if buffer.readonly else buffer
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return import_module("numpy").frombuffer(memory, label).reshape(buffer.shape)
    kind = getattr(torch, label)
    return torch.frombuffer(memory, dtype=kind).reshape(buffer.shape) if buffer.count else torch.empty(buffer.shape, dtype=kind)


def _moved(src: Buffer, dst: Buffer) -> Any:
    """An array over dst that holds src's elements, for an operation in place."""
    x = _array(dst)
    if src.address != dst.address:
        x[...] = _array(src)
    return x


_NEEDED = ("rank", "size", "name", "closed", "close", "abort", "check_peers")  # used by Group, besides the operations


class PluginBackend:
    """Follows arraycomm.core.interface.backend.Backend. ranks: the global ranks of the group to open."""

    on_gpus = "arraycomm.core.gpu.staged:Staged"

    def __init__(self, name: str, plugin: Plugin, pg_options: Any, ranks: Sequence[int]) -> None:
        self.name = name
        self.devices = frozenset(code for device in Backend.backend_capability[name] for code in DEVICE_TYPES[device])
        self._plugin, self._options, self._ranks = plugin, pg_options, ranks

    def unavailable(self) -> str | None:
        return None

    def meet(self, timeout: float, name: str) -> Rendezvous | None:
        return None

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> Communicator:
        """Raises TypeError if the function's result is no Communicator, and the function's own errors."""
        if self._plugin.extended_api:
            options = SimpleNamespace(store=meeting.store, group_rank=meeting.rank, group_size=meeting.size, group_id=name,
                                      timeout=timedelta(seconds=timeout), global_ranks_in_group=list(self._ranks))
            made: Any = self._plugin.creator_fn(options, self._options)
        else:
            made = self._plugin.creator_fn(meeting.store, meeting.rank, meeting.size, timedelta(seconds=timeout))
        if hasattr(made, "group_desc"):  # a ProcessGroup, which imports this module
            made = DerivedCommunicator(made)
            if (made.rank, made.size) != (meeting.rank, meeting.size):
                raise ValueError(f"backend {self.name!r} made rank {made.rank} of {made.size} where rank {meeting.rank} of "
                                 f"{meeting.size} is")
        missing = [part for part in _NEEDED if not hasattr(made, part)]
        if missing:
            raise TypeError(f"backend {self.name!r} gave a {type(made).__name__} without {', '.join(missing)}: it must be "
                            "a Communicator as arraycomm.core.interface.backend describes it, or a ProcessGroup")
        if not hasattr(made, "shortcut"):
            made.shortcut = None
        found: Communicator = made
        return found

"""EngineCommunicator: the base of the communicators over the C engine. One method per operation, which calls the engine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from arraycomm._engine import Operation, Shortcut, ffi, interrupted, lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import ReduceOp
from arraycomm.core.base.errors import Aborted
from arraycomm.core.base.threads import outlast
from arraycomm.core.group.arguments import nanoseconds
from arraycomm.core.interface.kinds import Kind

from .errors import Translator

NULL = ffi.NULL
_HANDLE = ffi.typeof("acomm_op **")


def address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _counts(counts: Sequence[int] | None) -> Any:
    return NULL if counts is None else ffi.new("uint64_t[]", list(counts))


def _before_error(code: int) -> None:
    """Raises the exception of a signal handler (Ctrl-C) that ran while this thread waited in the engine. Once the interpreter
    exits, keeps a daemon thread from its error, see outlast()."""
    outlast()
    if code == lib.ACOMM_INTERRUPTED and (error := interrupted()) is not None:
        raise error


class EngineCommunicator:
    """One rank's handle of a group of the engine. See arraycomm.core.interface.backend for the contract."""

    shortcut: Shortcut
    _group: Any  # an acomm_group, freed with it

    def __init__(self, rank: int, members: Sequence[int], name: str, timeout: float, place: Callable[[int], str]) -> None:
        """members: world ranks of the group. place: host and process of a rank of the group, for errors; "" if unknown."""
        self.rank, self.size, self.name, self.timeout = rank, len(members), name, timeout
        self._members = tuple(members)
        self.closed = self._freed = False
        self._told = False  # the group's failure has already been raised
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._translate = Translator(rank, self._members, name, place)

    def _carry(self, group: Any) -> None:
        """Stores the engine's group. It is freed with this object."""
        self._group = group
        self.shortcut = Shortcut(address(lib.acomm_lend()), address(group), self.rank, self.size, self._call_error)

    # ---- errors ----

    def error(self, code: int) -> Exception:
        """The exception for an error code of the engine. After an interrupt, raises the signal handler's exception."""
        _before_error(code)
        failure = ffi.new("acomm_failure *")
        with self.shortcut:
            failed = not self._freed and lib.acomm_group_failure(self._group, failure)
        self._told |= bool(failed)
        return self._translate.failure(failure) if failed else self._translate.code(code)

    def _call_error(self, code: int, where: int) -> Exception:
        """As error(), for a native call or an operation; its failure record is at the address `where`."""
        failure = ffi.cast("acomm_failure *", where)
        if not failure.code:
            return self.error(code)
        _before_error(code)
        self._told |= failure.code != lib.ACOMM_TRUNCATED  # a truncated message does not fail the group
        return self._translate.failure(failure)

    def _checked(self) -> Any:
        if self.closed:
            raise Aborted(f"group {self.name!r} is closed; make a new one with arraycomm.init() or split()")
        return self._group

    def _check_process(self) -> None:
        """Refuses a call in a forked child: connections, shared memory and peers belong to the parent. Calls that the engine
        refuses there need no such check."""
        if os.getpid() != self._pid:
            raise self._translate.code(lib.ACOMM_FORKED)

    def _run(self, kind: int, src: int, dst: int, count: int, dtype: int, layout: int, timeout: float | None, async_op: bool,
             owners: tuple[object, ...], op: ReduceOp | None = None, root: int = -1, tag: int = 0, counts: Any = NULL,
             received: Any = NULL) -> Operation | None:
        """src and dst: addresses. root: the peer, for a message. owners: objects that keep this memory alive."""
        redop, factor = (0, 0.0) if op is None else (op.code, op.factor)
        ns = nanoseconds(timeout)
        if not async_op:
            with self.shortcut:  # close() waits for the calls in here before it frees the group
                code = lib.acomm_operate(self._group if not self.closed else self._checked(), kind, src, dst, count, counts,
                                         received, dtype, redop, factor, root, tag, layout, ns, NULL)
            if code:
                raise self.error(code)
            return None
        out = ffi.new(_HANDLE)
        with self.lock:
            code = lib.acomm_operate(self._checked(), kind, src, dst, count, counts, received, dtype, redop, factor, root, tag,
                                     layout, ns, out)
            if code:
                raise self.error(code)
            return self.shortcut.operation(address(out[0]), owners)

    # ---- collectives ----

    def collective(self, kind: Kind, src: Buffer | None, dst: Buffer | None, op: ReduceOp | None = None, root: int = -1,
                   counts: Sequence[int] | None = None, receives: Sequence[int] | None = None, *, layout: int = 0,
                   timeout: float | None = None, async_op: bool = False) -> Operation | None:
        sides = [buffer for buffer in (src, dst) if buffer is not None]
        part = sides[-1 if kind.cuts else 0].count  # for a kind that scatters, the result's count
        count = part // self.size if kind.cuts and kind.joins else part
        each, received = _counts(counts), _counts(receives)
        return self._run(kind.number, src.address if src else 0, dst.address if dst else 0, count, sides[0].dtype, layout,
                         timeout, async_op, (src, dst, each, received), op, root, counts=each, received=received)

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Operation | None:
        return self._run(lib.ACOMM_BARRIER, 0, 0, 0, 0, 0, timeout, async_op, ())

    # ---- point to point ----

    def send(self, src: Buffer, peer: int, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Operation | None:
        return self._run(lib.ACOMM_SEND, src.address, 0, src.count, src.dtype, 0, timeout, async_op, (src,), root=peer, tag=tag)

    def recv(self, dst: Buffer, peer: int | None, tag: int = 0, *, timeout: float | None = None,
             async_op: bool = False) -> Operation:
        work = self._run(lib.ACOMM_RECV, 0, dst.address, dst.count, dst.dtype, 0, timeout, True, (dst,),
                         root=-1 if peer is None else peer, tag=tag)
        assert work is not None  # async_op is True
        if not async_op:
            work.wait()
        return work

    def probe(self, peer: int | None, tag: int, timeout: float | None) -> tuple[int, int, int, int] | None:
        out = ffi.new("acomm_message *")
        with self.shortcut:
            code = lib.acomm_probe(self._checked(), -1 if peer is None else peer, tag, nanoseconds(timeout), out)
        if code == 1:
            return None
        if code:
            raise self.error(code)
        return out.source, out.tag, out.dtype, out.count

    def batch(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # no grouping: each operation progresses on its own

    # ---- close ----

    def close(self, reason: str = "") -> None:
        if os.getpid() != self._pid:  # a forked child has no threads to wait for
            self.closed = True
            self.shortcut.close()
            return
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self._leaving()
        self.shortcut.close()
        why = f"left with {reason}".encode(errors="backslashreplace")[:191] if reason else NULL
        code = lib.acomm_group_stop(self._group, why)
        try:
            self._raise_untold(code, reason)
        finally:
            with self.lock:
                self._freed = True  # refuses new calls; end() waits for those under way
                self.shortcut.end()
            lib.acomm_group_close(self._group)
            self._left(reason)

    def _leaving(self) -> None:
        """Hook: called before the group is stopped."""

    def _left(self, reason: str) -> None:
        """Hook: called after the group has been freed."""

    def _raise_untold(self, code: int, reason: str) -> None:
        """Raises the failure of an operation that returned early here (a broadcast's root): no later call would raise it."""
        failure = ffi.new("acomm_failure *")
        refused = lib.acomm_group_failure(self._group, failure) and failure.code == lib.ACOMM_MISMATCH
        if code == lib.ACOMM_INTERRUPTED or (not self._told and not reason and (code or refused)):
            raise self.error(code or failure.code)

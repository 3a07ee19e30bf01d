"""Translates acomm.h's error codes and failure records into exceptions, for all backends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from arraycomm._engine import ffi, lib
from arraycomm.core.arrays.types import OPS, DType
from arraycomm.core.base import errors
from arraycomm.core.base.printable import printable
from arraycomm.core.interface import kinds

_TYPES: dict[int, type[errors.DistError]] = {
    lib.ACOMM_LOST: errors.PeerLost,
    lib.ACOMM_TIMEOUT: errors.CollectiveTimeout,
    lib.ACOMM_MISMATCH: errors.CollectiveMismatch,
    lib.ACOMM_TRUNCATED: errors.CollectiveMismatch,
    lib.ACOMM_ABORTED: errors.Aborted,
    lib.ACOMM_CLOSED: errors.Aborted,
    lib.ACOMM_INTERRUPTED: errors.Aborted,
    lib.ACOMM_RESOURCE: errors.ResourceError,
    lib.ACOMM_SYSTEM: errors.DistNetworkError,
    lib.ACOMM_PROTOCOL: errors.DistNetworkError,
}
KINDS = tuple(kinds.KINDS.values())
_OPS = {op.code: op.name for op in OPS.values()} | {8: "premul_sum"}
_SHARES = 2  # OP_SHARES: the end of Group.empty()
_ON_GPU = 4  # OP_ON_GPU


def describe(header: Any) -> str:
    """A call signature as text: all_reduce #7 of 1024 float32, sum."""
    number = f" #{header.sequence}" if header.sequence else ""
    if header.kind >= len(KINDS):
        return f"operation {header.kind}{number}"
    kind = KINDS[header.kind]
    if header.kind == lib.ACOMM_BARRIER:
        return f"{kind.name}{number}"
    dtype = DType(header.dtype).label if header.dtype < len(DType) else f"dtype {header.dtype}"
    if header.flags & _SHARES:
        return f"empty{number}"
    opaque = header.dtype == lib.ACOMM_OPAQUE_HEADER
    words = f"{kind.name}{number} of {header.count} {'bytes of a dtype that is moved only' if opaque else dtype}"
    if kind.reduces:
        words += f", {_OPS.get(header.redop, header.redop)}"
    return words if header.root < 0 or kind.message else f"{words}, root {header.root}"


def _difference(mine: Any, theirs: Any) -> str:
    """The difference between two call signatures that describe() does not print."""
    if describe(mine) != describe(theirs):
        return ""
    if (mine.flags ^ theirs.flags) & _ON_GPU:
        return " (only one's array is on a GPU)"
    if mine.layout != theirs.layout:
        return " (the shapes or the counts differ)"
    if mine.dtype == lib.ACOMM_OPAQUE_HEADER:
        return " (the dtypes differ)"
    return " (the factors differ)" if mine.factor != theirs.factor else ""


class Translator:
    """Makes the exceptions of one communicator: adds group names and hosts, which the engine does not have."""

    def __init__(self, rank: int, members: Sequence[int], name: str, place: Callable[[int], str]) -> None:
        """members: world ranks of the group. place: "host h, pid p" of a rank, or "" if unknown."""
        self._rank, self._size, self._members, self._place = rank, len(members), members, place
        self._who = f"rank {rank} of {self._size} in group {name!r}"

    def _peer(self, rank: int) -> str:
        if not 0 <= rank < self._size:
            return "a rank"
        return f"rank {rank} ({place})" if (place := self._place(rank)) else f"rank {rank}"

    def _culprits(self, failure: Any) -> tuple[int, ...]:
        if failure.culprit == lib.ACOMM_OTHERS:
            return tuple(rank for rank in range(self._size) if rank != failure.origin)
        return (int(failure.culprit),) if failure.culprit >= 0 else ()

    def _cause(self, failure: Any) -> str:
        code, text = failure.code, printable(ffi.string(failure.text))
        peer = self._peer(failure.culprit)
        if failure.culprit == lib.ACOMM_OTHERS:
            return f"all other ranks were lost: {text}"
        if code == lib.ACOMM_LOST:
            return f"{peer} was lost: {text or 'the connection broke'}"
        if code == lib.ACOMM_TIMEOUT:
            more = f" ({text})" if text else ""
            elsewhere = self._elsewhere(failure)
            if elsewhere or failure.culprit == self._rank != failure.origin:
                awaited = "this rank" if failure.culprit == self._rank else peer
                return f"{self._peer(failure.origin)} waited for {awaited} until its timeout was over{elsewhere}{more}"
            last = f"; it was last seen in collective #{failure.peer_sequence}" if failure.peer_sequence else ""
            return f"{peer} did not take part before the timeout was over{last}{more}"
        if code == lib.ACOMM_MISMATCH:
            differs = _difference(failure.mine, failure.theirs)
            return (f"{self._peer(failure.origin)} called {describe(failure.mine)}, but {peer} called "
                    f"{describe(failure.theirs)}{differs}; all ranks must call the same operations in the same order")
        if code == lib.ACOMM_TRUNCATED:
            unlike = failure.mine.count == failure.theirs.count and failure.mine.dtype == failure.theirs.dtype
            differs = " (the dtypes differ)" if unlike else ""
            return (f"the message and the receive differ: {self._peer(failure.origin)} called {describe(failure.mine)}, "
                    f"{peer} called {describe(failure.theirs)}{differs}; the message is discarded, the group can still be used")
        if code == lib.ACOMM_INTERRUPTED:
            return f"{self._peer(failure.origin)} was interrupted by a signal"
        if code == lib.ACOMM_ABORTED:
            return f"{self._peer(failure.origin)} aborted the group" + (f": {text}" if text else "")
        system = f": {os.strerror(failure.errnum)}" if failure.errnum else ""
        more = (f" ({text})" if text else "") + system
        if code == lib.ACOMM_PROTOCOL:
            return f"{peer} broke the wire protocol{more}"
        whose = "" if failure.culprit in (-1, self._rank) else f"{peer}: "
        return f"{whose}{ffi.string(lib.acomm_code_text(code)).decode()}{more}"

    def _elsewhere(self, failure: Any) -> str:
        """The operation of the rank that detected the failure, if another rank detected it in another operation."""
        theirs = failure.theirs
        if failure.origin == self._rank or not (theirs.sequence or theirs.count):
            return ""
        return "" if theirs.sequence and theirs.sequence == failure.mine.sequence else f", in {describe(theirs)}"

    def failure(self, failure: Any) -> errors.DistError:
        """The exception for a recorded failure."""
        message = KINDS[failure.mine.kind].message and failure.mine.count > 0  # messages have no sequence number
        known = failure.mine.sequence or message
        doing = f" in {describe(failure.mine)}" if known else ""
        after = f" after {failure.elapsed / 1e9:.2f} s" if failure.elapsed else ""
        writing = doing and KINDS[failure.mine.kind].gets != lib.ACOMM_NOBODY
        partial = "; an array that the operation was writing may hold partial data" if writing else ""
        if failure.code in (lib.ACOMM_MISMATCH, lib.ACOMM_TRUNCATED):
            doing, partial = "", ""
        elif failure.culprit == lib.ACOMM_OTHERS:
            partial = ""
        if failure.writer:
            writer = self._peer(failure.writer - 1)
            partial += f"; {writer} may still write to this rank's arrays: do not use them before it has ended"
        told = f"{self._who}{doing}{after}: {self._cause(failure)}{partial}"
        if failure.code == lib.ACOMM_TIMEOUT and failure.mine.kind == lib.ACOMM_RECV and failure.origin == self._rank:
            told += "; the group is finished: to poll, use irecv(...).result(timeout), or probe()"
        kind = _TYPES.get(failure.code, errors.DistBackendError)
        if not issubclass(kind, errors.GroupError):
            return kind(told)
        return kind(told, ranks=self._culprits(failure), members=self._members, sequence=int(failure.sequence))

    def code(self, code: int, detail: str = "") -> Exception:
        """The exception for a code without a recorded failure."""
        if code == lib.ACOMM_FORKED:
            return RuntimeError(f"{self._who}: this process was made by fork after the group; call arraycomm.init() in the "
                                "process that uses it")
        if code == lib.ACOMM_LOST:  # of a probe: no possible sender is left
            return self.failure(ffi.new("acomm_failure *", {
                "code": code, "culprit": lib.ACOMM_OTHERS, "origin": self._rank, "text": b"they have closed the group"}))
        words = ffi.string(lib.acomm_code_text(code)).decode() + (f": {detail}" if detail else "")
        return _TYPES.get(code, errors.DistBackendError)(f"{self._who}: {words}")

"""Operations of programs on a CUDA device: enqueued by the group's communicator for such arrays, on the program's stream.

The handler (native/xla_enqueue.c) calls enqueue() when XLA enqueues the program. NCCL does not make the host wait;
staging through the host does.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from arraycomm._engine import lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import CODES, OPS, DeviceType, ReduceOp, premul_sum
from arraycomm.core.gpu.runtime import runtime
from arraycomm.core.group.group import Group
from arraycomm.core.interface.kinds import KINDS

from .errors import enqueued, report

_LEGACY = 1  # the default stream, as DLPack numbers it
_groups: dict[int, weakref.ref[Group]] = {}  # by the numbers that programs know them by
_KINDS = {kind.number: kind for kind in KINDS.values()}
_ops = {CODES[name]: op for name, op in OPS.items()}


def know(number: int, group: Group) -> None:
    """For calls of programs."""
    _groups[number] = weakref.ref(group)


class _Fields(NamedTuple):
    """enum acomm_xla_field."""

    number: int
    kind: int
    elements: int
    dtype: int
    redop: int
    factor: int
    root: int
    source: int
    tag: int
    layout: int
    gives: int
    derived: int

    def op(self) -> ReduceOp:
        factor: float = struct.unpack("=d", struct.pack("=q", self.factor))[0]
        return _ops[self.redop] if self.redop in _ops else premul_sum(factor)


class _Enqueued(NamedTuple):
    """One operation. src, dst: None where this rank has none."""

    group: Group
    mover: Any
    fields: _Fields
    src: Buffer | None
    dst: Buffer | None


def enqueue(fields: tuple[int, ...], source: int, target: int, stream: int) -> str | None:
    """Called from C. source, target: addresses on the device, 0 for none. The text of the error."""
    asked = _Fields(*fields)
    try:
        group = _groups[asked.number]()
        if group is None or group._communicator.closed:
            return report(asked.number, None, asked.derived)
        _carry_out(group, asked, source, target, stream or _LEGACY)
    except BaseException as error:
        return report(asked.number, error, asked.derived)
    return None


def _carry_out(group: Group, asked: _Fields, source: int, target: int, stream: int) -> None:
    kind = _KINDS.get(asked.kind)  # none of a permutation
    device = runtime().pointer_type(source or target)[1] if source or target else 0

    def buffer(address: int, elements: int) -> Buffer:
        return Buffer(address, elements, asked.dtype, int(DeviceType.CUDA), device, False, (elements,), None, stream)

    if asked.kind == lib.ACOMM_BARRIER:
        group.barrier()
        return
    gets = asked.source >= 0 if kind is None else kind.has_part(kind.gets, group.rank, asked.root)
    src = buffer(source, asked.elements * (group.size if kind and kind.cuts else 1)) if asked.gives else None
    dst = buffer(target, asked.elements * (group.size if kind and kind.joins else 1)) if gets else None
    some = src or dst
    if some is None:  # a permutation without this rank
        return
    if int(DeviceType.CUDA) not in group._movers:
        group._routes.find(some, group.name)
    mover = group._movers[int(DeviceType.CUDA)]
    one = _Enqueued(group, mover, asked, src, dst)
    if asked.kind in _RUN:
        _RUN[asked.kind](one)
    elif kind is not None:
        mover.collective(kind, src, dst, asked.op() if kind.reduces else None, asked.root, layout=asked.layout)
    enqueued(mover)


def _permute(one: _Enqueued) -> None:
    """At once, so that a ring does not lock itself out."""
    works = []
    with one.group._routes.batch():
        if one.src is not None:
            works.append(one.mover.send(one.src, one.fields.root, one.fields.tag, async_op=True))
        if one.dst is not None:
            works.append(one.mover.recv(one.dst, one.fields.source, one.fields.tag, async_op=True))
    for work in works:
        work.wait()  # NCCL's: by the program's stream


_RUN: dict[int, Callable[[_Enqueued], object]] = {
    lib.ACOMM_SEND: lambda one: one.mover.send(one.src, one.fields.root, one.fields.tag),
    lib.ACOMM_RECV: lambda one: one.mover.recv(one.dst, None if one.fields.root < 0 else one.fields.root, one.fields.tag),
    lib.ACOMM_XLA_PERMUTE: _permute,
}

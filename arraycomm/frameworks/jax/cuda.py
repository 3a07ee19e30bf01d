"""Operations of compiled programs on a CUDA device: the group's communicator for CUDA enqueues them on the program's stream.

The handler (native/xla_enqueue.c) calls enqueue() when XLA enqueues the program. NCCL does not make the host wait;
staging through the host does.
"""

from __future__ import annotations

import struct
import weakref
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from arraycomm._engine import lib
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.types import CODES, OPS, DeviceType, ReduceOp, premul_sum
from arraycomm.core.gpu.runtime import runtime
from arraycomm.core.group.group import Group
from arraycomm.core.interface.kinds import KINDS

from .errors import enqueued, report

_LEGACY = 1  # the default stream, as DLPack numbers it
_groups: dict[int, weakref.ref[Group]] = {}  # by the group numbers in compiled programs
_KINDS = {kind.number: kind for kind in KINDS.values()}
_ops = {CODES[name]: op for name, op in OPS.items()}


def know(number: int, group: Group) -> None:
    """Registers the group for calls from compiled programs."""
    _groups[number] = weakref.ref(group)


class _Fields(namedtuple("_Fields", "number kind elements dtype redop factor root source tag layout gives derived")):
    """enum acomm_xla_field."""

    def op(self) -> ReduceOp:
        factor: float = struct.unpack("=d", struct.pack("=q", self.factor))[0]
        return _ops[self.redop] if self.redop in _ops else premul_sum(factor)


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
    kind = _KINDS.get(asked.kind)  # None for a permutation
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
    if asked.kind in _RUN:
        _RUN[asked.kind](group, mover, asked, src, dst)
    elif kind is not None:
        mover.collective(kind, src, dst, asked.op() if kind.reduces else None, asked.root, layout=asked.layout)
    enqueued(mover)


def _permute(group: Group, mover: Any, asked: _Fields, src: Buffer | None, dst: Buffer | None) -> None:
    """Sends and receives at once, so that a ring does not deadlock."""
    works = []
    with group._routes.batch():
        if src is not None:
            works.append(mover.send(src, asked.root, asked.tag, async_op=True))
        if dst is not None:
            works.append(mover.recv(dst, asked.source, asked.tag, async_op=True))
    for work in works:
        work.wait()  # for NCCL the program's stream waits, not the host


# src, dst: None if this rank has no input or no output.
_RUN: dict[int, Callable[[Group, Any, _Fields, Buffer | None, Buffer | None], object]] = {
    lib.ACOMM_SEND: lambda group, mover, asked, src, dst: mover.send(src, asked.root, asked.tag),
    lib.ACOMM_RECV: lambda group, mover, asked, src, dst: mover.recv(dst, None if asked.root < 0 else asked.root, asked.tag),
    lib.ACOMM_XLA_PERMUTE: _permute,
}

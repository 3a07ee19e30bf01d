"""all_reduce and reduce with "minloc" and "maxloc": the extremes, and their ranks or indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arraycomm._engine import lib

from ..arrays.buffer import Buffer
from ..arrays.dlpack import allocate, wrap
from ..arrays.joined import copy, on_host, room
from ..arrays.types import LOCATING, OPS, DType
from ..interface.kinds import KINDS
from . import arguments, shapes
from .arguments import Destination

if TYPE_CHECKING:
    from .group import Group


def located(group: Any, x: Any, op: Any, index: Any, root: int, out: Any, timeout: float | None, *,
            async_op: bool) -> tuple[Any, Any] | None:
    """See Group.all_reduce() and reduce(). root: -1 where all ranks get the result."""
    arguments.seconds(timeout)
    if op not in LOCATING:
        raise ValueError(f"index is for minloc and maxloc, not for {op}")
    if async_op:
        raise ValueError(f"{op} is two reductions, one of what the other has found, and cannot be asynchronous")
    src = group._readable(x)
    reduction = arguments.reduction(op[:3], src.dtype)
    gets = root in (-1, group.rank)
    values, places = out if gets and out is not None else (None, None)
    to = arguments.destination(x, src, src.shape, values, distinct=True)
    at = _places(x, src, places) if gets else arguments.NOWHERE
    indices = None if index is None or isinstance(index, int) else _indices(group, index, src.shape)
    number = group.rank if index is None or indices else arguments.integer("index", index)
    layout = shapes.layout(src.shape, [1])
    group._collective("all_reduce", src, to, layout, timeout, False, reduction)
    mine, found = allocate(src.shape, DType.INT64), allocate(src.shape, DType.INT64)
    own, extremes = on_host(src), on_host(to.buffer)
    code = lib.acomm_locate(mine.address, own.address, extremes.address, indices.address if indices else 0, number, src.count,
                            src.dtype)
    assert code == 0, code  # operation and dtype have been checked
    kind = KINDS["all_reduce" if root < 0 else "reduce"]
    group._communicator.collective(kind, mine, found if gets else None, OPS["min"], root, layout=layout, timeout=timeout)
    if not gets:
        return None
    copy(found, at.buffer)
    return to.array(), at.array()


def _places(x: Any, src: Buffer, out: Any) -> Destination:
    """The Destination of the ranks or indices, on the device of x."""
    like = Buffer(0, 0, DType.INT64, src.device_type, src.device_index, False, (0,), None, src.stream)
    if out is not None:
        return arguments.destination(x, like, src.shape, out)
    made = room(like, src.shape)
    return Destination(made, lambda: wrap(made, x))


def _indices(group: Group, index: Any, shape: tuple[int, ...]) -> Buffer:
    found = group._readable(index)
    if found.dtype != DType.INT64:
        raise TypeError(f"index must be an int, or an array of int64, got {DType(found.dtype).label}")
    if found.shape != shape:
        raise ValueError(f"index has shape {found.shape}, but x has shape {shape}")
    return on_host(found)

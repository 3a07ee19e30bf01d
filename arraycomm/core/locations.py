"""all_reduce with "minloc" and "maxloc": the extremes, and which rank or index has them."""

from __future__ import annotations

from arraycomm._engine import lib

from . import arguments, shapes
from .dlpack import allocate, wrap
from .typed import TYPE_CHECKING, Any
from .types import OPS, DeviceType, DType

if TYPE_CHECKING:
    from .group import Group

OPERATIONS = ("minloc", "maxloc")
_HOST = (int(DeviceType.CPU), int(DeviceType.CUDA_HOST), int(DeviceType.ROCM_HOST))


def located(group: Group, x: Any, op: str, index: Any, out: Any, timeout: float | None, *, async_op: bool) -> tuple[Any, Any]:
    """See Group.all_reduce()."""
    arguments.seconds(timeout)
    if async_op:
        raise ValueError(f"{op} is two reductions, one of what the other has found, and cannot be asynchronous")
    src = group._readable(x)
    if src.device_type not in _HOST:
        raise TypeError(f"{op} is for arrays in host memory: copy x there, or compare x with its all_reduce(x, {op[:3]!r})")
    reduction = arguments.reduction(op[:3], src.dtype)
    where = None if index is None or isinstance(index, int) else _indices(group, index, src.shape)
    values, places = (None, None) if out is None else out
    to = arguments.destination(x, src, src.shape, values, distinct=True)
    mine = allocate(src.shape, DType.INT64)
    at = arguments.destination(x, mine, src.shape, places)
    layout = shapes.layout(src.shape, [1])
    group._collective("all_reduce", src, to, layout, timeout, False, reduction)
    number = group.rank if index is None or where is not None else arguments.integer("index", index)
    indices = where.address if where else 0
    code = lib.acomm_locate(mine.address, src.address, to.buffer.address, indices, number, src.count, src.dtype)
    assert code == 0, code  # operation and dtype have been checked
    group._collective("all_reduce", mine, at, layout, timeout, False, OPS["min"])
    return to.array(), at.array() if places is not None else wrap(at.buffer, x)


def _indices(group: Group, index: Any, shape: tuple[int, ...]) -> Any:
    found = group._readable(index)
    if found.dtype != DType.INT64 or found.device_type not in _HOST:
        raise TypeError(f"index must be an int, or an array of int64 in host memory, got {DType(found.dtype).label}")
    if found.shape != shape:
        raise ValueError(f"index has shape {found.shape}, but x has shape {shape}")
    return found

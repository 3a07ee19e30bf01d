"""Argument checks before anything is sent, with the exception types of torch; arrays become Buffers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from arraycomm.core.arrays.arrays import landing
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.dlpack import overlaps, pack, resolve, resolve_out, wrap
from arraycomm.core.arrays.joined import duplicate
from arraycomm.core.arrays.types import DeviceType, DType
from arraycomm.core.arrays.types import ReduceOp as CoreReduceOp
from arraycomm.core.base.errors import ImmutableOutput, StridedOutput
from arraycomm.core.group import arguments as core_arguments

from ..process_groups import devices
from ..process_groups.process_group import ProcessGroup
from .reduce_op import RedOpType, ReduceOp, _make_nccl_premul_sum, supports_complex

Settle = Callable[[], Any] | None

_PARTS: dict[int, int] = {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}
_ARRAY = "torch.Tensor, numpy.ndarray or another array that supports DLPack"


# ---- arrays ----


def _is_array(x: Any) -> bool:
    if hasattr(type(x), "__dlpack__"):
        return True
    try:
        memoryview(x).release()
    except TypeError:
        return False
    return not isinstance(x, bytes)


def wrong_type(name: str, expected: str, value: object) -> TypeError:
    return TypeError(f"Invalid function argument. Expected parameter `{name}` of type {expected}, but got {type(value)} instead.")


def array(name: str, x: Any) -> None:
    """TypeError unless x is an array."""
    if not _is_array(x):
        raise wrong_type(name, _ARRAY, x)


def listed(name: str, xs: Any) -> None:
    """TypeError unless xs is a list of arrays."""
    if not isinstance(xs, list):
        raise wrong_type(name, f"list of {_ARRAY}", xs)
    for x in xs:
        if not _is_array(x):
            raise wrong_type(name, f"list of {_ARRAY}", x)


def read(name: str, x: Any) -> Buffer:
    """The array's elements, packed."""
    array(name, x)
    return resolve(x)


def read_all(name: str, xs: Any) -> list[Buffer]:
    listed(name, xs)
    return [resolve(x) for x in xs]


def written(name: str, x: Any) -> tuple[Buffer, Settle]:
    """The buffer that receives x's new elements, and the function that copies it into x afterwards (None: no copy is needed).

    It holds x's elements, so that an operation may work in place. ValueError for what cannot be written.
    """
    array(name, x)
    try:
        buffer = resolve_out(x)
        return buffer, None if buffer.device_type == DeviceType.CPU else landing(x, buffer)
    except ImmutableOutput as error:
        raise ImmutableOutput(
            f"`{name}` is written in place, as in torch.distributed, and that is impossible here: {error}. Calls that give a new "
            "array instead: those of the group's `core` (dist.group.WORLD.core), an arraycomm.Group: y = core.all_reduce(x) and "
            "so on") from None
    except StridedOutput:
        _check_apart(name, x)
        buffer = pack(x) if devices.of_array(x) == DeviceType.CPU else duplicate(resolve(x))
        return buffer, lambda: _store(x, buffer)


def written_all(name: str, xs: Any) -> tuple[list[Buffer], Settle]:
    listed(name, xs)
    places = [written(name, x) for x in xs]
    last = [settle for _, settle in places if settle is not None]
    return [buffer for buffer, _ in places], (lambda: [settle() for settle in last]) if last else None


def both(first: Settle, then: Settle) -> Settle:
    """A function that calls the two, one after the other."""
    if first is None or then is None:
        return then if first is None else first

    def run() -> None:
        first()
        then()

    return run


def _check_apart(name: str, x: Any) -> None:
    """An array whose elements share memory (an expanded one) cannot hold a result."""
    strides = x.stride() if callable(getattr(x, "stride", None)) else getattr(x, "strides", None) or ()
    if any(stride == 0 and length > 1 for stride, length in zip(strides, x.shape, strict=False)):
        raise ValueError(f"several elements of `{name}` refer to the same memory, so it cannot hold a result; pass a copy of it")


def _store(x: Any, buffer: Buffer) -> None:
    into = x.detach() if hasattr(x, "detach") else x
    with _current(buffer):
        into[...] = wrap(buffer, x)


def _current(buffer: Buffer) -> AbstractContextManager[Any]:
    """Makes the buffer's device current in the calling thread: CuPy computes there, and a helper thread has another default."""
    if buffer.device_type == DeviceType.CPU:
        return nullcontext()
    from arraycomm.core.gpu.runtime import runtime  # imported on demand: host arrays do not need it

    return runtime().on(buffer.device_index)


def packed(x: Any) -> bool:
    """Whether the array is C-contiguous; True if its library does not report it."""
    flags = getattr(x, "flags", None)
    if flags is not None:
        return bool(flags.c_contiguous)
    ask = getattr(x, "is_contiguous", None)
    return True if ask is None else bool(ask())


def apart(source: Buffer, to: Buffer) -> Buffer:
    """The source; a copy of it if it shares memory with the destination."""
    return duplicate(source) if overlaps(source, to) else source


def same_dtype(*buffers: Buffer, parts: bool = False) -> None:
    """ValueError where they differ. parts: a complex dtype is the same as that of its parts, as in torch."""
    def kind(buffer: Buffer) -> int:
        return _PARTS.get(buffer.dtype, buffer.dtype) if parts else buffer.dtype

    for buffer in buffers:
        if kind(buffer) != kind(buffers[0]):
            raise ValueError(f"Invalid usage of tensors with different dtypes. Found {DType(buffers[0].dtype).label} and "
                             f"{DType(buffer.dtype).label}")


def in_parts(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The buffers with one common dtype: complex buffers become pairs of reals if other buffers are real."""
    if all(buffer.dtype == buffers[0].dtype for buffer in buffers):
        return list(buffers)
    return [buffer if buffer.dtype not in _PARTS else
            Buffer(buffer.address, 2 * buffer.count, _PARTS[buffer.dtype], buffer.device_type, buffer.device_index,
                   buffer.readonly, (*buffer.shape, 2), buffer) for buffer in buffers]


def same_shape(name: str, shape: tuple[int, ...], buffers: Sequence[Buffer]) -> None:
    """RuntimeError where they have another."""
    for index, buffer in enumerate(buffers):
        if buffer.shape != shape:
            raise RuntimeError(f"`{name}`: invalid tensor size at index {index} (expected {shape}, got {buffer.shape})")


def as_many(name: str, xs: Sequence[Any], size: int) -> None:
    """RuntimeError unless there is one for each rank."""
    if len(xs) != size:
        raise RuntimeError(f"`{name}`: invalid tensor list size {len(xs)}, must be the size of the group, {size}")


def one_each(name: str, buffers: Sequence[Buffer], size: int, one: Buffer, alike: Sequence[Buffer]) -> None:
    """A list with an array for each rank, all of the dtype of `one`, and those of them that are `alike` of its shape."""
    as_many(name, buffers, size)
    same_dtype(one, *buffers)
    same_shape(name, one.shape, alike)


def of_root(name: str, given: Any, is_root: bool, end: str) -> Any:
    """A list that the root has to give, and no other rank."""
    if is_root and not given:
        raise ValueError(f"Argument ``{name}`` must be specified on {end} rank.")
    if given and not is_root:
        raise ValueError(f"Argument ``{name}`` must NOT be specified on non-{end} ranks.")
    return given


def whole(name: str, numbers: Any) -> list[int]:
    """The numbers of a list, none for None. TypeError unless they are whole."""
    try:
        return [] if numbers is None else [operator.index(n) for n in numbers]
    except TypeError:
        raise wrong_type(name, "list of int", numbers) from None


# ---- ranks ----


def peer(pg: ProcessGroup, global_rank: Any, group_rank: Any) -> int:
    """The rank in the group that is meant. ValueError when both or none are given, it has no such rank, or it is closed."""
    if pg.closed:
        raise ValueError(f"Group {pg!r} is not registered: it is closed; create another with new_group()")
    if group_rank is not None:
        if global_rank is not None:
            raise ValueError("Can't specify both group_rank and global_rank")
        rank = operator.index(group_rank)
        if not 0 <= rank < len(pg.ranks):
            which = f"whose last one is {len(pg.ranks) - 1}" if pg.ranks else "which has no members yet: call reconfigure()"
            raise ValueError(f"Group rank {rank} is not part of group {pg.group_name!r}, {which}")
        return rank
    if global_rank is None:
        raise ValueError("Must specify global_rank or group_rank")
    try:
        found = pg._place.get(operator.index(global_rank))
    except TypeError:  # as torch, which looks the value up unconverted
        found = None
    if found is None:
        raise ValueError(f"Global rank {global_rank!r} is not part of group {pg.group_name!r}, which has {list(pg.ranks)}")
    return found


def other(pg: ProcessGroup, rank: int) -> int:
    """A rank of the group that a message may go to. ValueError for this one."""
    if rank == pg.rank():
        raise ValueError("Invalid destination rank: destination rank should not be the same as the rank of the current process.")
    return rank


# ---- reductions ----


def known(op: Any) -> ReduceOp:
    """TypeError unless op is a ReduceOp, of this package or of torch."""
    if isinstance(op, ReduceOp):
        return op
    if type(op).__module__.startswith("torch."):  # torch's own ReduceOp: a program may mix the two modules
        inner = op if type(op).__name__ == "RedOpType" else getattr(op, "op", None)
        name = getattr(inner, "name", None)
        if name == "PREMUL_SUM" and inner is not op:
            return _make_nccl_premul_sum(op.factor)
        if name in RedOpType.__members__:
            return RedOpType.__members__[name]
    raise TypeError(f"Invalid function argument. Expected parameter `op` of type ReduceOp, but got {op!r} instead.")


def reduction(what: str, op: Any, dtype: int) -> CoreReduceOp:
    """The core's reduction. TypeError unless op is a ReduceOp; ValueError or RuntimeError for a dtype without this reduction."""
    given = known(op)
    if dtype in _PARTS and not supports_complex(given):
        raise ValueError(f"{what} does not support {given.op} on complex tensors")
    core = given._core
    try:
        return core_arguments.reduction(core, dtype)
    except TypeError as error:
        raise RuntimeError(f"Cannot use ReduceOp.{given.op.name}: {error}") from None

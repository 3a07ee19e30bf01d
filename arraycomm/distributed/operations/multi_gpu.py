"""The multi-GPU functions of older editions: one process takes part with several arrays. FutureWarning: they are deprecated.

Each list has the same length k on all ranks; array i of rank r counts as member r * k + i.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.dlpack import allocate
from arraycomm.core.arrays.joined import copy, joined, target
from arraycomm.core.arrays.types import DeviceType, DType
from arraycomm.core.base.errors import DeviceError
from arraycomm.core.group.local import reduce_into

from . import arguments
from .arguments import both, same_dtype, same_shape
from .entry import operation
from .reduce_op import ReduceOp
from .work import Work, ended

_OLDER = "`torch.distributed.{}` is deprecated: torch.distributed's preferred programming model is one device per process"


def _places(name: str, xs: Any) -> tuple[list[Buffer], Callable[[], Any] | None]:
    places, settle = arguments.written_all(name, xs)
    if not places:
        raise RuntimeError(f"`{name}` needs at least one tensor, got an empty list")
    same_dtype(*places)
    same_shape(name, places[0].shape, places)
    return places, settle


def _chosen(name: str, index: int, xs: Sequence[Any]) -> int:
    if not 0 <= index < len(xs):
        raise ValueError(f"{name} {index} is not an index of the tensor list, which has {len(xs)} entries")
    return index


@operation(_OLDER)
def broadcast_multigpu(tensor_list: list[Any], src: int, group: Any = None, async_op: bool = False,
                       src_tensor: int = 0) -> Work | None:
    """Copies array src_tensor of rank src into all arrays of all ranks. FutureWarning: use broadcast().

    - Shapes: any, the same for all arrays; all ranks have equally many.
    - Dtypes: one for all arrays.
    - Memory: all arrays are written, and must be writable.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.

    Examples:
        On each of two ranks:

        >>> xs = [np.full(1, float(dist.get_rank())), np.full(1, 5.0)]
        >>> dist.broadcast_multigpu(xs, src=1)
        >>> xs
        [array([1.]), array([1.])]
    """
    root = arguments.peer(group, src, None)
    places, settle = _places("tensor_list", tensor_list)
    first = places[_chosen("src_tensor", src_tensor, places)]
    pending = group.core.broadcast(first, root, out=first, async_op=bool(async_op))
    return ended(pending, bool(async_op), tensor_list, both(lambda: _copies(first, places), settle))


def _copies(first: Buffer, places: Sequence[Buffer]) -> None:
    for place in places:
        if place is not first:
            copy(first, place)


@operation(_OLDER)
def all_reduce_multigpu(tensor_list: list[Any], op: ReduceOp = ReduceOp.SUM, group: Any = None,
                        async_op: bool = False) -> Work | None:
    """The reduction of all arrays of all ranks, in all of them. FutureWarning: use all_reduce().

    - Shapes: any, the same for all arrays; all ranks have equally many.
    - Dtypes: one for all arrays, for which op is defined. Arrays lie in host memory.
    - Memory: each array is input and output.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.

    Examples:
        On each of two ranks:

        >>> xs = [np.ones(1), np.ones(1)]
        >>> dist.all_reduce_multigpu(xs)
        >>> xs
        [array([4.]), array([4.])]
    """
    places, settle = _places("tensor_list", tensor_list)
    first, reduction = _reduced("all_reduce_multigpu", places, op)
    pending = group.core.all_reduce(first, reduction, out=first, async_op=bool(async_op))
    return ended(pending, bool(async_op), tensor_list, both(lambda: _copies(first, places), settle))


@operation(_OLDER)
def reduce_multigpu(tensor_list: list[Any], dst: int, op: ReduceOp = ReduceOp.SUM, group: Any = None,
                    async_op: bool = False, dst_tensor: int = 0) -> Work | None:
    """The reduction of all arrays of all ranks, in array dst_tensor of rank dst. FutureWarning: use reduce().

    - Shapes: any, the same for all arrays; all ranks have equally many.
    - Dtypes: one for all arrays, for which op is defined. Arrays lie in host memory.
    - Memory: only array dst_tensor of rank dst is written.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.

    Examples:
        On each of two ranks:

        >>> xs = [np.ones(1), np.ones(1)]
        >>> dist.reduce_multigpu(xs, dst=0, dst_tensor=1)
        >>> [x.item() for x in xs] == ([1.0, 4.0] if dist.get_rank() == 0 else [1.0, 1.0])
        True
    """
    root = arguments.peer(group, dst, None)
    places, settle = _places("tensor_list", tensor_list)
    place = places[_chosen("dst_tensor", dst_tensor, places)]
    first, reduction = _reduced("reduce_multigpu", places, op)
    out = first if group.rank() == root else None
    pending = group.core.reduce(first, root, reduction, out=out, async_op=bool(async_op))
    return ended(pending, bool(async_op), tensor_list, None if out is None else both(lambda: copy(first, place), settle))


def _reduced(what: str, places: Sequence[Buffer], op: ReduceOp) -> tuple[Buffer, Any]:
    """The reduction of this process's arrays, and the op for the reduction across ranks (a factor is applied once)."""
    reduction = arguments.reduction(what, op, places[0].dtype)
    if places[0].device_type != DeviceType.CPU:
        raise DeviceError(f"{what} reduces arrays in host memory only; on GPUs use one process for each, as torch recommends")
    first = allocate(places[0].shape, DType(places[0].dtype))
    reduce_into(first, places, reduction)
    return first, "sum" if reduction.name == "premul_sum" else reduction


@operation(_OLDER)
def all_gather_multigpu(output_tensor_lists: list[list[Any]], input_tensor_list: list[Any], group: Any = None,
                        async_op: bool = False) -> Work | None:
    """Every array of every rank, in order, in each of the output lists, one list for each input. FutureWarning: use all_gather().

    - Shapes: any, the same for all arrays; each output list has an entry for each input of each rank.
    - Dtypes: one for all arrays.
    - Memory: inputs may be outputs; they are copied first in that case.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.

    Examples:
        On each of two ranks:

        >>> outputs = [[np.empty(1), np.empty(1)]]
        >>> dist.all_gather_multigpu(outputs, [np.full(1, float(dist.get_rank()))])
        >>> outputs
        [[array([0.]), array([1.])]]
    """
    sources = arguments.read_all("input_tensor_list", input_tensor_list)
    outputs = [_places("output_tensor_lists", xs) for xs in output_tensor_lists]
    if len(outputs) != len(sources) or any(len(places) != len(sources) * group.size() for places, _ in outputs):
        raise RuntimeError(f"all_gather_multigpu needs {len(sources)} output lists of {len(sources) * group.size()} tensors, got "
                           f"{[len(places) for places, _ in outputs]}")
    for places, _ in outputs:
        same_dtype(*sources, *places)
        same_shape("output_tensor_lists", sources[0].shape, [*sources, *places])
    wholes, spreads = zip(*(target(places) for places, _ in outputs), strict=True)
    steps: list[Any] = [functools.partial(_copies, wholes[0], wholes), *spreads, *(last for _, last in outputs)]
    source, whole = arguments.apart(joined(sources), wholes[0]), wholes[0]
    pending = group.core.all_gather(source, out=whole, async_op=bool(async_op))
    return ended(pending, bool(async_op), [x for xs in output_tensor_lists for x in xs], functools.reduce(both, steps))


@operation(_OLDER)
def reduce_scatter_multigpu(output_tensor_list: list[Any], input_tensor_lists: list[list[Any]], op: ReduceOp = ReduceOp.SUM,
                            group: Any = None, async_op: bool = False) -> Work | None:
    """The reduction over all input lists of all ranks; output i of rank r, of k outputs, gets entry r * k + i. FutureWarning.

    Use reduce_scatter() in new programs.

    - Shapes: any, the same for all arrays; each input list has an entry for each output of each rank.
    - Dtypes: one for all arrays, for which op is defined. Arrays lie in host memory.
    - Memory: outputs may be inputs; these are copied first in that case.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.

    Examples:
        On each of two ranks:

        >>> y = np.empty(1)
        >>> dist.reduce_scatter_multigpu([y], [[np.ones(1), np.full(1, 5.0)]])
        >>> y.item() == (2.0 if dist.get_rank() == 0 else 10.0)
        True
    """
    places, settle = _places("output_tensor_list", output_tensor_list)
    inputs = [arguments.read_all("input_tensor_lists", xs) for xs in input_tensor_lists]
    if len(inputs) != len(places) or any(len(sources) != len(places) * group.size() for sources in inputs):
        raise RuntimeError(f"reduce_scatter_multigpu needs {len(places)} input lists of {len(places) * group.size()} tensors, "
                           f"got {[len(sources) for sources in inputs]}")
    for sources in inputs:
        same_dtype(*places, *sources)
        same_shape("input_tensor_lists", places[0].shape, sources)
    first, reduction = _reduced("reduce_scatter_multigpu", [joined(sources) for sources in inputs], op)
    whole, spread = target(places)
    pending = group.core.reduce_scatter(first, reduction, out=whole, async_op=bool(async_op))
    return ended(pending, bool(async_op), output_tensor_list, both(spread, settle))

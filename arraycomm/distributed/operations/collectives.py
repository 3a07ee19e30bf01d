"""Collectives on one array per rank, in place as in torch.distributed: the result is where the caller's arrays are.

Common parameters: group (None: the default group), async_op (return a Work at once; a synchronous call returns None).
Ranks outside of the group get None and a UserWarning. Errors before anything is sent: TypeError for arguments of the wrong
type, ValueError for dtypes that differ, ranks that are not in the group and arrays that cannot be written, RuntimeError for
wrong sizes. After that the DistErrors, which are RuntimeErrors.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.joined import flat
from arraycomm.core.group.shapes import row

from ..process_groups.process_group import ProcessGroup
from ..process_groups.world import member
from . import arguments
from .entry import Held, begin, current, entered, operation, run_held
from .reduce_op import ReduceOp
from .work import ENDED, Work, ended


def all_reduce(tensor: Any, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
               async_op: bool = False) -> Work | None:
    """The elementwise reduction of every rank's array, in place on every rank. The result has the same bits on all ranks.

    torch's sparse tensors (COO) are taken too, by SUM and AVG: the result is coalesced, and complete when the call returns.

    - Shapes: any, the same on all ranks.
    - Dtypes: the same on all ranks; those for which op is defined.
    - Memory: tensor is input and output. It may have strides, and must be writable.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.all_reduce()`.

    Examples:
        On each of two ranks:

        >>> x = np.full(2, dist.get_rank() + 1.0)
        >>> dist.all_reduce(x)
        >>> x.tolist()
        [3.0, 3.0]
    """
    short: Any = None if current.profiler._is_profiler_enabled else current.default if group is None else group
    short = getattr(short, "_plain", None)
    done = NotImplemented if short is None else short._plain_all_reduce(tensor, getattr(op, "_plain", ""), out=tensor,
                                                                       async_op=async_op)
    if done is not NotImplemented:
        return Work(done, (tensor,)) if async_op else None
    pg, async_op = member(group, "all_reduce"), bool(async_op)
    if pg is None:
        return None
    if getattr(tensor, "is_sparse", False):  # torch's
        if pg._collected:
            run_held(pg)
        import_module("arraycomm.frameworks.torch.sparse").all_reduce_sparse(pg, tensor, arguments.known(op).op.name.lower())
        return ended(ENDED, async_op, (tensor,))
    place, settle = arguments.written("tensor", tensor)
    reduction = arguments.reduction("all_reduce", op, place.dtype)
    start = partial(pg.core.all_reduce, place, reduction, out=place)
    return begin(pg, Held(start, (tensor,), settle, (pg.core, place, reduction)), async_op, together=True)


@operation()
def reduce(tensor: Any, dst: int | None = None, op: ReduceOp = ReduceOp.SUM, group: Any = None,
           async_op: bool = False, group_dst: int | None = None) -> Work | None:
    """As all_reduce(), but only rank dst of the world (or group_dst of the group) gets the result.

    - Shapes: any, the same on all ranks.
    - Dtypes: the same on all ranks; those for which op is defined.
    - Memory: tensor is the input; at the root it is the output too. The other ranks' arrays are unchanged.
    - Blocks: the root until every rank has called it; another rank until its array may be changed. With async_op=True it returns
      a
      Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.reduce()`.

    Examples:
        On each of two ranks:

        >>> x = np.full(2, dist.get_rank() + 1)
        >>> dist.reduce(x, dst=0)
        >>> x.tolist() == ([3, 3] if dist.get_rank() == 0 else [2, 2])
        True
    """
    root, async_op = arguments.peer(group, dst, group_dst), bool(async_op)
    gets = group.rank() == root
    place, settle = arguments.written("tensor", tensor) if gets else (arguments.read("tensor", tensor), None)
    reduction = arguments.reduction("reduce", op, place.dtype)
    start = partial(group.core.reduce, place, root, reduction, out=place if gets else None)
    return begin(group, Held(start, (tensor,), settle), async_op)


def broadcast(tensor: Any, src: int | None = None, group: ProcessGroup | None = None, async_op: bool = False,
              group_src: int | None = None) -> Work | None:
    """Copies the array of rank src of the world (or group_src of the group) into the arrays of all other ranks.

    - Shapes: any, the same on all ranks.
    - Dtypes: every one, the same on all ranks.
    - Memory: tensor is the input at the root and the output elsewhere, where it must be writable.
    - Blocks: a rank until it has the array; the root until its array may be changed. With async_op=True it returns a Work at
      once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.broadcast()`.

    Examples:
        On each of two ranks:

        >>> x = np.full(2, dist.get_rank())
        >>> dist.broadcast(x, src=1)
        >>> x.tolist()
        [1, 1]
    """
    if group is None and group_src is None and src is not None and not current.profiler._is_profiler_enabled:
        short: Any = getattr(current.default, "_rooted", None)
        done = NotImplemented if short is None else short._plain_broadcast(tensor, src, out=tensor, async_op=async_op)
        if done is not NotImplemented:
            return Work(done, (tensor,)) if async_op else None
    pg = entered(group, "broadcast")
    if pg is None:
        return None
    root, async_op = arguments.peer(pg, src, group_src), bool(async_op)
    place, settle = (arguments.read("tensor", tensor), None) if pg.rank() == root else arguments.written("tensor", tensor)
    start = partial(pg.core.broadcast, place, root, out=None if place.readonly else place)
    return begin(pg, Held(start, (tensor,), settle), async_op)


def all_gather_single(output_tensor: Any, input_tensor: Any, group: ProcessGroup | None = None,
                      async_op: bool = False) -> Work | None:
    """Every rank's input in one output on every rank, in rank order.

    - Shapes: the output has as many elements as all inputs together: joined along the first dimension, or stacked. The inputs are
      equally large.
    - Dtypes: every one, the same on all ranks and for input and output.
    - Memory: the input may be this rank's part of the output; any other overlap is not allowed.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.all_gather()`.

    Examples:
        On each of two ranks:

        >>> y = np.empty(4)
        >>> dist.all_gather_single(y, np.full(2, float(dist.get_rank())))
        >>> y.tolist()
        [0.0, 0.0, 1.0, 1.0]
    """
    short: Any = None if current.profiler._is_profiler_enabled else current.default if group is None else group
    short = getattr(short, "_plain", None)
    done = NotImplemented if short is None else short._plain_all_gather(input_tensor, out=output_tensor, async_op=async_op)
    if done is not NotImplemented:
        return Work(done, (output_tensor,)) if async_op else None
    pg = member(group, "all_gather_single")
    if pg is None:
        return None
    source = arguments.read("input_tensor", input_tensor)
    place, settle = arguments.written("output_tensor", output_tensor)
    arguments.same_dtype(source, place)
    _check_size("output_tensor", place, "input_tensor", source, pg.size())
    start = partial(pg.core.all_gather, flat(source), out=flat(place))
    return begin(pg, Held(start, (output_tensor,), settle), bool(async_op), together=True)


def all_gather_into_tensor(output_tensor: Any, input_tensor: Any, group: ProcessGroup | None = None,
                           async_op: bool = False) -> Work | None:
    """The older name of all_gather_single(). It gives a FutureWarning, as in torch.

    - Shapes: as for all_gather_single().
    - Dtypes: every one, the same on all ranks.
    - Memory: input and output as for all_gather_single().
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.all_gather()`.

    Examples:
        On each of two ranks:

        >>> y = np.empty(2, int)
        >>> dist.all_gather_into_tensor(y, np.full(1, dist.get_rank()))
        >>> y.tolist()
        [0, 1]
    """
    _renamed("all_gather_into_tensor", "all_gather_single")
    return all_gather_single(output_tensor, input_tensor, group, async_op)


def reduce_scatter_single(output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
                          async_op: bool = False) -> Work | None:
    """The reduction of every rank's input; each rank gets one part of it.

    - Shapes: the input has world size times as many elements as the output; part r goes to rank r.
    - Dtypes: the same on all ranks and for input and output; those for which op is defined.
    - Memory: the output may be this rank's part of the input; any other overlap is not allowed.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.reduce_scatter()`.

    Examples:
        On each of two ranks:

        >>> y = np.empty(1)
        >>> dist.reduce_scatter_single(y, np.array([1.0, 2.0]))
        >>> y.tolist() == [2.0 + 2.0 * dist.get_rank()]
        True
    """
    short: Any = None if current.profiler._is_profiler_enabled else current.default if group is None else group
    short = getattr(short, "_plain", None)
    done = NotImplemented if short is None else short._plain_reduce_scatter(input, getattr(op, "_plain", ""), out=output,
                                                                           async_op=async_op)
    if done is not NotImplemented:
        return Work(done, (output,)) if async_op else None
    pg = member(group, "reduce_scatter_single")
    if pg is None:
        return None
    source = arguments.read("input", input)
    place, settle = arguments.written("output", output)
    arguments.same_dtype(source, place)
    _check_size("input", source, "output", place, pg.size())
    reduction = arguments.reduction("reduce_scatter_single", op, source.dtype)
    start = partial(pg.core.reduce_scatter, flat(source), reduction, out=flat(place))
    return begin(pg, Held(start, (output,), settle), bool(async_op), together=True)


def reduce_scatter_tensor(output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
                          async_op: bool = False) -> Work | None:
    """The older name of reduce_scatter_single(). It gives a FutureWarning, as in torch.

    - Shapes: as for reduce_scatter_single().
    - Dtypes: the same on all ranks; those for which op is defined.
    - Memory: input and output as for reduce_scatter_single().
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.reduce_scatter()`.

    Examples:
        On each of two ranks:

        >>> y = np.empty(1)
        >>> dist.reduce_scatter_tensor(y, np.ones(2), op=dist.ReduceOp.AVG)
        >>> y.tolist()
        [1.0]
    """
    _renamed("reduce_scatter_tensor", "reduce_scatter_single")
    return reduce_scatter_single(output, input, op, group, async_op)


@operation()
def all_to_all_single(output: Any, input: Any, output_split_sizes: Sequence[int] | None = None,
                      input_split_sizes: Sequence[int] | None = None, group: Any = None,
                      async_op: bool = False) -> Work | None:
    """Sends part d of the input, which is cut along the first dimension, to rank d. The output joins the parts that arrive.

    Args:
        output_split_sizes: the rows that come from each rank; None or empty: equal parts.
        input_split_sizes: the rows that go to each rank; None or empty: equal parts. If one rank gives split sizes, all must.

    - Shapes: of one dimension or more. Without split sizes input and output have as many elements.
    - Dtypes: every one, the same on all ranks and for input and output.
    - Memory: input and output may overlap; the input is copied first in that case.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.all_to_all()`.

    Examples:
        On each of two ranks:

        >>> y = np.empty(2, int)
        >>> dist.all_to_all_single(y, np.array([0, 1]) + 10 * dist.get_rank())
        >>> y.tolist() == [dist.get_rank(), 10 + dist.get_rank()]
        True
    """
    source = arguments.read("input", input)
    place, settle = arguments.written("output", output)
    arguments.same_dtype(source, place)
    give = arguments.whole("input_split_sizes", input_split_sizes)
    take = arguments.whole("output_split_sizes", output_split_sizes)
    sends, receives = _splits(group.size(), source, give), _splits(group.size(), place, take)
    core, async_op, source, to = group.core, bool(async_op), arguments.apart(flat(source), place), flat(place)
    if not give and not take:
        if source.count != to.count:
            raise RuntimeError(f"`output` has {to.count} elements and `input` {source.count}, but no split sizes")
        pending = core.all_to_all(source, out=to, async_op=async_op)
    else:
        pending = core.all_to_all(source, send_counts=sends, recv_counts=receives, out=to, async_op=async_op)
    return ended(pending, async_op, (output,), settle)


def _splits(size: int, buffer: Buffer, rows: Sequence[int]) -> list[int]:
    """Elements for each rank. RuntimeError, with torch's words, where they do not fit."""
    if not buffer.shape:
        raise RuntimeError("all_to_all_single cuts along dim 0, and a 0-d tensor has none")
    if not rows:
        if buffer.shape[0] % size:
            raise RuntimeError(f"Tensor's dim 0 ({buffer.shape[0]}) does not divide equally across group size {size}")
        return [buffer.count // size] * size
    if len(rows) != size:
        raise RuntimeError(f"Number of tensor splits not equal to group size: {len(rows)} splits, {size} ranks")
    if sum(rows) != buffer.shape[0] or min(rows) < 0:
        raise RuntimeError(f"Split sizes doesn't match total dim 0 size: {rows} of {buffer.shape[0]}")
    return [n * row(buffer.shape) for n in rows]


def _check_size(large: str, whole: Buffer, small: str, part: Buffer, size: int) -> None:
    if whole.count != part.count * size:
        raise RuntimeError(f"`{large}` has {whole.count} elements (shape {whole.shape}), but it must have {size} times as many "
                           f"as `{small}`, which has {part.count} (shape {part.shape})")


def _renamed(old: str, new: str) -> None:
    warnings.warn(f"`torch.distributed.{old}` is deprecated. Please use `torch.distributed.{new}` instead.", FutureWarning,
                  stacklevel=3)

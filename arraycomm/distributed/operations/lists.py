"""Collectives whose input or output is a list with one array for each rank.

Parameters and errors as in collectives.py. Lists of slices that follow each other in memory need no copy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from arraycomm.core.arrays.dlpack import overlaps
from arraycomm.core.arrays.joined import flat, joined, target

from . import arguments
from .entry import Held, begin, operation
from .reduce_op import ReduceOp
from .work import Work, ended


@operation()
def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """Every rank's array, in rank order, in the arrays of a list.

    - Shapes: entry r of the list is as large as rank r's array; the ranks' arrays may differ in size.
    - Dtypes: every one, the same on all ranks and in the list.
    - Memory: tensor may be this rank's entry of the list. A list whose arrays follow each other in memory is written without a
      copy.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.all_gather()`.

    Examples:
        On each of two ranks:

        >>> parts = [np.empty(1), np.empty(1)]
        >>> dist.all_gather(parts, np.full(1, float(dist.get_rank())))
        >>> parts
        [array([0.]), array([1.])]
    """
    places, settle = arguments.written_all("tensor_list", tensor_list)
    source = arguments.read("tensor", tensor)
    arguments.one_each("tensor_list", places, group.size(), source, places[group.rank() : group.rank() + 1])
    whole, spread = target(places)
    counts = [place.count for place in places]
    even, source = len(set(counts)) == 1, flat(source)
    if not even and overlaps(source, whole):
        source = arguments.apart(source, whole)
    start = partial(group.core.all_gather, source, counts=None if even else counts, out=whole)
    return begin(group, Held(start, tensor_list, arguments.both(spread, settle)), bool(async_op))


@operation()
def gather(tensor: Any, gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None,
           async_op: bool = False, group_dst: int | None = None) -> Work | None:
    """Every rank's array, in rank order, in the arrays of rank dst's list. dst is 0 by default, and only that rank passes a list.

    - Shapes: any, the same on all ranks and in the list.
    - Dtypes: every one, the same on all ranks and in the list.
    - Memory: tensor is read only. At the root it may be its entry of the list.
    - Blocks: the root until every rank has called it; another rank until its array may be changed. With async_op=True it returns
      a
      Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.gather()`.

    Examples:
        On each of two ranks:

        >>> parts = [np.empty(1), np.empty(1)] if dist.get_rank() == 0 else None
        >>> dist.gather(np.full(1, float(dist.get_rank())), parts, dst=0)
        >>> parts is None or [part.item() for part in parts] == [0.0, 1.0]
        True
    """
    root, async_op = arguments.peer(group, 0 if dst is None and group_dst is None else dst, group_dst), bool(async_op)
    source, core = arguments.read("tensor", tensor), group.core
    outputs = arguments.of_root("gather_list", gather_list, group.rank() == root, "destination")
    if group.rank() != root:
        return begin(group, Held(partial(core.gather, flat(source), root), ()), async_op)
    places, settle = arguments.written_all("gather_list", outputs)
    arguments.one_each("gather_list", places, group.size(), source, places)
    whole, spread = target(places)
    start = partial(core.gather, flat(source), root, out=whole)
    return begin(group, Held(start, outputs, arguments.both(spread, settle)), async_op)


@operation()
def scatter(tensor: Any, scatter_list: list[Any] | None = None, src: int | None = None, group: Any = None,
            async_op: bool = False, group_src: int | None = None) -> Work | None:
    """Copies entry r of rank src's list into rank r's array. src is 0 by default, and only that rank passes a list.

    - Shapes: any, the same on all ranks and in the list.
    - Dtypes: every one, the same on all ranks and in the list.
    - Memory: tensor is the output, and must be writable. At the root it may be its entry of the list.
    - Blocks: a rank until it has its part; the root until its list may be changed. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.scatter()`.

    Examples:
        On each of two ranks:

        >>> x = np.empty(1)
        >>> dist.scatter(x, [np.zeros(1), np.ones(1)] if dist.get_rank() == 0 else None)
        >>> x.item() == dist.get_rank()
        True
    """
    root, async_op = arguments.peer(group, 0 if src is None and group_src is None else src, group_src), bool(async_op)
    place, settle = arguments.written("tensor", tensor)
    core, to = group.core, flat(place)
    inputs = arguments.of_root("scatter_list", scatter_list, group.rank() == root, "source")
    if group.rank() != root:
        return begin(group, Held(partial(core.scatter, None, root, out=to), (tensor,), settle), async_op)
    sources = arguments.read_all("scatter_list", inputs)
    arguments.one_each("scatter_list", sources, group.size(), place, sources)
    whole = arguments.apart(joined(sources), to)
    return begin(group, Held(partial(core.scatter, whole, root, out=to), (tensor,), settle), async_op)


@operation()
def reduce_scatter(output: Any, input_list: list[Any], op: ReduceOp = ReduceOp.SUM, group: Any = None,
                   async_op: bool = False) -> Work | None:
    """Reduces every rank's lists entry by entry; rank r gets the reduction of entry r.

    - Shapes: entries may differ in size, in the same way on all ranks; output is as large as entry r.
    - Dtypes: the same on all ranks and in the list; those for which op is defined.
    - Memory: output may be an entry of the list; the list is copied first in that case.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.reduce_scatter()`.

    Examples:
        On each of two ranks:

        >>> y = np.empty(1)
        >>> dist.reduce_scatter(y, [np.ones(1), np.full(1, 5.0)])
        >>> y.item() == (2.0 if dist.get_rank() == 0 else 10.0)
        True
    """
    sources = arguments.read_all("input_list", input_list)
    place, settle = arguments.written("output", output)
    arguments.one_each("input_list", sources, group.size(), place, sources[group.rank() : group.rank() + 1])
    reduction = arguments.reduction("reduce_scatter", op, place.dtype)
    counts, to = [source.count for source in sources], flat(place)
    whole = arguments.apart(joined(sources), to)
    start = partial(group.core.reduce_scatter, whole, reduction, counts=None if len(set(counts)) == 1 else counts, out=to)
    return begin(group, Held(start, (output,), settle), bool(async_op))


@operation()
def all_to_all(output_tensor_list: list[Any], input_tensor_list: list[Any], group: Any = None,
               async_op: bool = False) -> Work | None:
    """Sends entry d of the input list to rank d; entry s of the output list comes from rank s.

    - Shapes: all entries may differ in size; what one rank sends is as large as what the other receives.
    - Dtypes: every one, the same in all lists of all ranks.
    - Memory: an output may be an input; the inputs are copied first in that case.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a Work at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.all_to_all()`.

    Examples:
        On each of two ranks:

        >>> rank, outputs = dist.get_rank(), [np.empty(1, int), np.empty(1, int)]
        >>> dist.all_to_all(outputs, [np.full(1, 10 * rank), np.full(1, 10 * rank + 1)])
        >>> [y.item() for y in outputs] == [rank, 10 + rank]
        True
    """
    places, settle = arguments.written_all("output_tensor_list", output_tensor_list)
    sources = arguments.read_all("input_tensor_list", input_tensor_list)
    arguments.as_many("output_tensor_list", places, group.size())
    arguments.as_many("input_tensor_list", sources, group.size())
    arguments.same_dtype(*places, *sources)
    if sources[me := group.rank()].count != places[me].count:
        raise RuntimeError(f"all_to_all: entry {me}, which this rank sends to itself, has {sources[me].count} elements in "
                           f"`input_tensor_list` and {places[me].count} in `output_tensor_list`")
    whole, spread = target(places)
    pending = group.core.all_to_all(
        arguments.apart(joined(sources), whole), send_counts=[source.count for source in sources],
        recv_counts=[place.count for place in places], out=whole, async_op=bool(async_op))
    return ended(pending, bool(async_op), output_tensor_list, arguments.both(spread, settle))

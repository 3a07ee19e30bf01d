"""Collectives whose input or output is a list with one array for each rank.

Parameters and errors as in collectives.py. Lists of slices that follow each other in memory need no copy.
"""

from __future__ import annotations

from functools import partial

from arraycomm.core.arrays.dlpack import overlaps
from arraycomm.core.arrays.joined import flat, joined, target
from arraycomm.core.base.typed import Any

from . import arguments
from .entry import Held, begin, operation
from .reduce_op import ReduceOp
from .work import Work, ended


@operation()
def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Work | None:
    """Every rank's array, in rank order, into the list's arrays. They may differ in size: entry r is as large as rank r's."""
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
    """Every rank's array, in rank order, into the list's arrays at rank dst (0 by default), which alone gives a list."""
    root, async_op = arguments.peer(group, 0 if dst is None and group_dst is None else dst, group_dst), bool(async_op)
    source, core = arguments.read("tensor", tensor), group.core
    if group.rank() != root:
        if gather_list:
            raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
        return begin(group, Held(partial(core.gather, flat(source), root), ()), async_op)
    if not gather_list:
        raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
    places, settle = arguments.written_all("gather_list", gather_list)
    arguments.one_each("gather_list", places, group.size(), source, places)
    whole, spread = target(places)
    start = partial(core.gather, flat(source), root, out=whole)
    return begin(group, Held(start, gather_list, arguments.both(spread, settle)), async_op)


@operation()
def scatter(tensor: Any, scatter_list: list[Any] | None = None, src: int | None = None, group: Any = None,
            async_op: bool = False, group_src: int | None = None) -> Work | None:
    """Entry r of the list at rank src (0 by default), which alone gives one, into rank r's array."""
    root, async_op = arguments.peer(group, 0 if src is None and group_src is None else src, group_src), bool(async_op)
    place, settle = arguments.written("tensor", tensor)
    core, to = group.core, flat(place)
    if group.rank() != root:
        if scatter_list:
            raise ValueError("Argument ``scatter_list`` must NOT be specified on non-source ranks.")
        return begin(group, Held(partial(core.scatter, None, root, out=to), (tensor,), settle), async_op)
    if not scatter_list:
        raise ValueError("Argument ``scatter_list`` must be specified on source rank.")
    sources = arguments.read_all("scatter_list", scatter_list)
    arguments.one_each("scatter_list", sources, group.size(), place, sources)
    whole = arguments.apart(joined(sources), to)
    return begin(group, Held(partial(core.scatter, whole, root, out=to), (tensor,), settle), async_op)


@operation()
def reduce_scatter(output: Any, input_list: list[Any], op: ReduceOp = ReduceOp.SUM, group: Any = None,
                   async_op: bool = False) -> Work | None:
    """The reduction of every rank's entry r, in rank r's output. Entries may differ in size, alike on all ranks."""
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
    """Entry d of the input list goes to rank d, and entry s of the output list comes from rank s. Sizes may all differ."""
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

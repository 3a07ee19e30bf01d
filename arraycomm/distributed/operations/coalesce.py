"""Several collectives in one call, and the manager that defers them until its block ends."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

from arraycomm.core.arrays.joined import joined, target

from ..process_groups.process_group import ProcessGroup
from ..process_groups.world import resolve
from . import arguments
from .entry import Held, entered, run_held, start_all
from .reduce_op import ReduceOp
from .work import Work, ended


def all_reduce_coalesced(tensors: Any, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
                         async_op: bool = False) -> Any:
    """all_reduce() of each array of a list. FutureWarning, as in torch. With async_op=True it gives a future of the arrays.

    - Shapes: any, the same on all ranks.
    - Dtypes: one for the list; a complex array counts as one of its parts' dtype.
    - Memory: each array is input and output, and must be writable.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a future at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.all_reduce()`, once for all arrays.

    Examples:
        On each of two ranks:

        >>> xs = [np.ones(1), np.full(2, 2.0)]
        >>> dist.all_reduce_coalesced(xs)
        >>> xs
        [array([2.]), array([4., 4.])]
    """
    _deprecated("all_reduce_coalesced")
    return _future_of(reduce_all(tensors, op, group, async_op))


def reduce_all(tensors: Any, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
               async_op: bool = False) -> Work | None:
    """all_reduce_coalesced() without its warning, which is not for ProcessGroup's method."""
    pg = entered(group, "all_reduce_coalesced", 5)
    if pg is None:
        return None
    xs = tensors if isinstance(tensors, list) else [tensors]
    arguments.listed("tensors", xs)
    if not xs:
        raise RuntimeError("all_reduce_coalesced needs at least one tensor, got an empty list")
    places, settles = zip(*(arguments.written("tensors", x) for x in xs), strict=True)
    arguments.same_dtype(*places, parts=True)
    reduction, *_ = [arguments.reduction("all_reduce", op, place.dtype) for place in places]  # it depends on op alone
    parts = arguments.in_parts(places)
    waiting = [Held(partial(pg.core.all_reduce, place, reduction, out=place), (x,), settle, (pg.core, place, reduction))
               for x, place, settle in zip(xs, parts, settles, strict=True)]
    return start_all(waiting, bool(async_op))


def all_gather_coalesced(output_tensor_lists: list[list[Any]], input_tensor_list: list[Any],
                         group: ProcessGroup | None = None, async_op: bool = False) -> Any:
    """Every rank's list of arrays: entry i of output list r gets entry i of rank r's inputs.

    FutureWarning, as in torch. With async_op=True it gives a future of all output arrays, one after the other.

    - Shapes: each list of outputs has the shapes of the inputs, which are the same on all ranks.
    - Dtypes: each output has the dtype of its input; complex arrays count as arrays of their parts' dtype.
    - Memory: inputs may be outputs of this rank; they are copied first in that case.
    - Blocks: until every rank of the group has called it. With async_op=True it returns a future at once.
    - Timeout: the group's. CollectiveTimeout names the late ranks, and the group cannot be used any more.
    - Errors: TypeError, ValueError or RuntimeError for the arguments, before anything is sent. Afterwards PeerLost,
      CollectiveMismatch or Aborted, which are RuntimeErrors. A rank outside of the group gets a warning and None.
    - Algorithm: that of `arraycomm.Group.all_gather()`, once for all arrays.

    Examples:
        On each of two ranks:

        >>> outputs = [[np.empty(1)], [np.empty(1)]]
        >>> dist.all_gather_coalesced(outputs, [np.full(1, float(dist.get_rank()))])
        >>> outputs
        [[array([0.])], [array([1.])]]
    """
    _deprecated("all_gather_coalesced")
    return _future_of(gather_all(output_tensor_lists, input_tensor_list, group, async_op))


def gather_all(output_tensor_lists: list[list[Any]], input_tensor_list: list[Any], group: ProcessGroup | None = None,
               async_op: bool = False) -> Work | None:
    """all_gather_coalesced() without its warning."""
    pg = entered(group, "all_gather_coalesced", 5)
    if pg is None:
        return None
    sources = arguments.read_all("input_tensor_list", input_tensor_list)
    if not isinstance(output_tensor_lists, list):
        raise arguments.wrong_type("output_tensor_lists", "list of lists of arrays", output_tensor_lists)
    for xs in output_tensor_lists:
        arguments.listed("output_tensor_lists", xs)
    if not sources:
        raise RuntimeError("all_gather_coalesced needs at least one tensor, got an empty list")
    arguments.as_many("output_tensor_lists", output_tensor_lists, pg.size())
    flat = [x for xs in output_tensor_lists for x in xs]
    places, settle = arguments.written_all("output_tensor_lists", flat)
    arguments.same_dtype(*sources, *places, parts=True)
    for xs in output_tensor_lists:
        shapes = [arguments.read("output_tensor_lists", x).shape for x in xs]
        if shapes != [source.shape for source in sources]:
            raise RuntimeError(f"all_gather_coalesced: invalid size of output tensors: {shapes}, expected "
                               f"{[source.shape for source in sources]}")
    for index, place in enumerate(places):
        arguments.same_dtype(sources[index % len(sources)], place)
    whole, spread = target(arguments.in_parts(places))
    source = arguments.apart(joined(arguments.in_parts(sources)), whole)
    pending = pg.core.all_gather(source, out=whole, async_op=bool(async_op))
    return ended(pending, bool(async_op), flat, arguments.both(spread, settle))


def _future_of(work: Work | None) -> Any:
    return None if work is None else work.get_future()


def _deprecated(name: str) -> None:
    warnings.warn(f"`torch.distributed.{name}` will be deprecated. If you must use it, please revisit our documentation later "
                  "at https://pytorch.org/docs/main/distributed.html#collective-functions", FutureWarning, stacklevel=3)


class CoalescingManager:
    """The target of `with _coalescing_manager()`. works: those of the deferred operations if async_ops is True."""

    def __init__(self) -> None:
        self.works: list[Any] = []

    def append(self, work: Any = None) -> None:
        if work:
            self.works.append(work)

    def wait(self) -> None:
        """Blocks until all deferred operations have ended."""
        for work in self.works:
            work.wait()


@contextlib.contextmanager
def _coalescing_manager(group: ProcessGroup | None = None, device: Any = None,
                        async_ops: bool = False) -> Iterator[CoalescingManager]:
    """Holds back all_reduce, all_gather_single and reduce_scatter_single of the group, and runs them when the block ends.

    They run in their order; all_reduces of one op and dtype that follow each other run as one, as with gloo in torch: arrays that
    share memory are each reduced as they were before.
    async_ops: the block does not wait for them, wait() of the manager does. Where all_reduces stand beside other operations,
    which may need what those write, or differ in op or dtype, the block waits for all but the last run of them.
    device is accepted and not used. ValueError when nested. When the block raises, what is held back is dropped.
    """
    pg = resolve(group)
    if pg._collected is not None:
        raise ValueError("ProcessGroup has non-empty op list at the start of coalescing: managers cannot be nested")
    manager = CoalescingManager()
    pg._hold([])
    try:
        yield manager
        manager.append(run_held(pg, async_ops))
    finally:
        pg._hold(None)

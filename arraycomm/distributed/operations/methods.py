"""ProcessGroup's own methods, over the functions of this package: each begins an operation and returns its Work.

Names, parameters and their forms (forms.py) are torch's; ranks are ranks of the group. Where torch takes a list of arrays, each
array is an operation, and the Work stands for all; a list is as long on all ranks (else CollectiveMismatch) and not empty
(ValueError).
timeout: a timedelta for this operation, None takes the group's.
opts: one of options.py. Errors are those of the functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from arraycomm.core.group.exchange import gather_integers, mismatch
from arraycomm.core.group.group import Group
from arraycomm.core.interface.kinds import RECORDED

from ..process_groups.options import Options
from .forms import forms
from .work import Several, Work, ended

if TYPE_CHECKING:
    from ..process_groups.process_group import ProcessGroup

_TIMED = frozenset((*RECORDED, *(f"_plain_{name}" for name in RECORDED)))


class Timed:
    """A view of a core group with another default timeout, in seconds."""

    def __init__(self, group: Any, timeout: float) -> None:
        self.group: Group = group.group if isinstance(group, Timed) else group
        self.timeout = timeout

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.group, name)
        return partial(self._call, found) if name in _TIMED else found

    def _call(self, found: Callable[..., Any], *args: Any, timeout: float | None = None, **named: Any) -> Any:
        return found(*args, timeout=self.timeout if timeout is None else timeout, **named)


def untimed(core: Any) -> Group:
    """The core group itself, to which watchers can be attached."""
    return core.group if isinstance(core, Timed) else core


def within(group: ProcessGroup, timeout: timedelta | None) -> ProcessGroup:
    """The same group with another default timeout; itself for None. Raises TypeError for what is no timedelta."""
    if timeout is None:
        return group
    view = copy.copy(group)
    view.set_timeout(timeout)
    return view


def _arrays(tensors: Any) -> Sequence[Any]:
    """A list of arrays; a single array becomes a list of one."""
    return tensors if isinstance(tensors, (list, tuple)) else (tensors,)


def _lists(lists: Any, count: int) -> Sequence[Any]:
    """A list of lists: a single list becomes a list of one; ranks that are not the root pass none and get `count` empty lists."""
    if not lists:
        return ((),) * count
    return lists if isinstance(lists[0], (list, tuple)) else (lists,)


def _told(given: dict[str, Any], root_name: str = "") -> dict[str, Any]:
    """The function's named arguments, from values or the fields of opts. root_name: the function's name for the root."""
    opts: Options | None = given.get("opts")
    if opts is not None:
        given = {"timeout": opts.timeout if opts.timeout > timedelta(0) else None,
                 "op": getattr(opts, "reduceOp", None), "root": getattr(opts, "rootRank", None)}
    told = {root_name if name == "root" else name: value for name, value in given.items() if value is not None}
    return ({root_name: 0} if root_name else {}) | told | {"async_op": True}


def begin_each(view: ProcessGroup, what: str, calls: Sequence[Callable[[ProcessGroup], object]]) -> Work:
    """view: a private handle of the group. what: the collective's name, which all ranks call equally often; "" for messages.

    Raises what the calls raise, and CollectiveMismatch where other ranks make fewer or more.
    """
    collected: list[Any] = []
    view._hold(collected, everything=True)
    for call in calls:
        call(view)
    if what:
        _agree(view.core, what, len(calls))
    works: Any = [ended(held.start(async_op=True), True, held.arrays, held.settle) for held in collected]
    return Work(Several([work._pending for work in works]), list(chain.from_iterable(held.arrays for held in collected)),
                lambda: [work.wait() for work in works])


def _agree(core: Any, what: str, mine: int) -> None:
    counts = [count for count, in gather_integers(core._communicator, [mine], getattr(core, "timeout", None))]
    odd = next((rank for rank, count in enumerate(counts) if count != counts[0]), None)
    if odd is not None:
        raise mismatch(core, [odd], f"{what}: rank 0 gives a list of {counts[0]} arrays, rank {odd} one of {counts[odd]}; all "
                       "ranks must give as many")


class Operations:
    """The operations, as a base class of ProcessGroup."""

    def _begin(self: Any, where: str, *args: Any, timeout: timedelta | None = None, **named: Any) -> Work:
        """where: "module.function". The modules import ProcessGroup, so the import is deferred to the call."""
        module, function = where.split(".")
        called: Callable[..., Work] = getattr(import_module(f".{module}", __package__), function)
        return called(*args, group=within(self, timeout), **named)

    def _begin_each(self: Any, where: str, *lists: Sequence[Any], timeout: timedelta | None = None, **named: Any) -> Work:
        """One operation for each index of the lists, which are equally long; all are checked before the first one begins."""
        if len({len(arrays) for arrays in lists}) > 1:
            raise ValueError(f"as many outputs as inputs are needed, got {' and '.join(str(len(arrays)) for arrays in lists)}")
        calls = list(zip(*lists, strict=True))
        if not calls:
            raise ValueError(f"{where.rpartition('.')[2]} needs at least one array, got an empty list")
        if len(calls) == 1:
            return self._begin(where, *calls[0], timeout=timeout, **named)  # type: ignore[no-any-return]
        if any(getattr(x, "is_sparse", False) for args in calls for x in args):  # sparse tensors are exchanged in several steps
            raise TypeError("sparse tensors are reduced one at a time: call this for each of them")
        if self._collected is not None:
            return [self._begin(where, *args, timeout=timeout, **named) for args in calls][0]  # type: ignore[no-any-return]
        def begin(args: tuple[Any, ...], view: Any) -> Any:
            return view._begin(where, *args, **named)

        collective = "" if where.startswith("point_to_point") else where.rpartition(".")[2]
        return begin_each(copy.copy(within(self, timeout)), collective, [partial(begin, args) for args in calls])

    # ---- one array a rank, or some ----

    @forms("(tensors, opts=AllreduceOptions())", "(tensors, op=ReduceOp.SUM, timeout=None)",
           "(tensor, op=ReduceOp.SUM, timeout=None)")
    def allreduce(self, tensors: Any, **given: Any) -> Work:
        """As all_reduce(), for each array of a list or for one array.

        - Shapes: any, the same on all ranks.
        - Dtypes: the same on all ranks; those for which op is defined.
        - Memory: each array is input and output.
        - Blocks: never; Work.wait() does.
        - Errors: as all_reduce(); those after the arguments' from Work.wait().
        """
        return self._begin_each("collectives.all_reduce", _arrays(tensors), **_told(given))

    @forms("(tensors, opts=BroadcastOptions())", "(tensor, root, timeout=None)")
    def broadcast(self, tensors: Any, **given: Any) -> Work:
        """As broadcast(), for each array of a list or for one array.

        - Shapes: any, the same on all ranks.
        - Dtypes: every one, the same on all ranks.
        - Memory: the root's arrays are read, the others' are written.
        - Blocks: never; Work.wait() does.
        - Errors: as broadcast(); those after the arguments' from Work.wait().
        """
        return self._begin_each("collectives.broadcast", _arrays(tensors), **_told(given, "group_src"))

    @forms("(tensors, opts=ReduceOptions())", "(tensor, root, op=ReduceOp.SUM, timeout=None)")
    def reduce(self, tensors: Any, **given: Any) -> Work:
        """As reduce(), for each array of a list or for one array.

        - Shapes: any, the same on all ranks.
        - Dtypes: the same on all ranks; those for which op is defined.
        - Memory: only the root's arrays are written.
        - Blocks: never; Work.wait() does.
        - Errors: as reduce(); those after the arguments' from Work.wait().
        """
        return self._begin_each("collectives.reduce", _arrays(tensors), **_told(given, "group_dst"))

    @forms("(output, input, opts=AllgatherOptions())")
    def all_gather_single(self, output: Any, input: Any, **given: Any) -> Work:
        """As all_gather_single().

        - Shapes: the output has as many elements as all inputs together.
        - Dtypes: every one, the same on all ranks.
        - Memory: the input may be this rank's part of the output.
        - Blocks: never; Work.wait() does.
        - Errors: as all_gather_single(); those after the arguments' from Work.wait().
        """
        return self._begin("collectives.all_gather_single", output, input, **_told(given))

    @forms("(outputTensor, inputTensor, opts=ReduceScatterOptions())")
    def reduce_scatter_single(self, output: Any, input: Any, **given: Any) -> Work:
        """As reduce_scatter_single().

        - Shapes: the input has world size times as many elements as the output.
        - Dtypes: the same on all ranks; those for which op is defined.
        - Memory: the output may be this rank's part of the input.
        - Blocks: never; Work.wait() does.
        - Errors: as reduce_scatter_single(); those after the arguments' from Work.wait().
        """
        return self._begin("collectives.reduce_scatter_single", output, input, **_told(given))

    @forms("(output, input, output_split_sizes, input_split_sizes, opts=AllToAllOptions())",
           "(output, input, output_split_sizes, input_split_sizes, timeout=None)")
    def all_to_all_single(self, output: Any, input: Any, output_split_sizes: Sequence[int], input_split_sizes: Sequence[int],
                          **given: Any) -> Work:
        """As all_to_all_single(). Empty lists of split sizes cut into equal parts.

        - Shapes: of one dimension or more.
        - Dtypes: every one, the same on all ranks.
        - Memory: input and output may overlap; the input is copied first in that case.
        - Blocks: never; Work.wait() does.
        - Errors: as all_to_all_single(); those after the arguments' from Work.wait().
        """
        return self._begin("collectives.all_to_all_single", output, input, list(output_split_sizes) or None,
                           list(input_split_sizes) or None, **_told(given))

    alltoall_base = all_to_all_single

    # ---- lists ----

    @forms("(output_tensors, input_tensors, opts=AllgatherOptions())", "(output_tensors, input_tensor, timeout=None)")
    def allgather(self, outputs: Any, inputs: Any, **given: Any) -> Work:
        """As all_gather(), for each list of outputs and its input.

        - Shapes: entry r of a list is as large as rank r's array.
        - Dtypes: every one, the same on all ranks.
        - Memory: an input may be this rank's entry of its list.
        - Blocks: never; Work.wait() does.
        - Errors: as all_gather(); those after the arguments' from Work.wait().
        """
        xs = _arrays(inputs)
        return self._begin_each("lists.all_gather", _lists(outputs, len(xs)), xs, **_told(given))

    @forms("(output_tensors, input_tensors, opts=GatherOptions())", "(output_tensors, input_tensor, root, timeout=None)")
    def gather(self, outputs: Any, inputs: Any, **given: Any) -> Work:
        """As gather(), for each list of outputs and its input. Ranks other than the root give no outputs.

        - Shapes: any, the same on all ranks.
        - Dtypes: every one, the same on all ranks.
        - Memory: only the root's arrays are written.
        - Blocks: never; Work.wait() does.
        - Errors: as gather(); those after the arguments' from Work.wait().
        """
        xs = _arrays(inputs)
        return self._begin_each("lists.gather", xs, _lists(outputs, len(xs)), **_told(given, "group_dst"))

    @forms("(output_tensors, input_tensors, opts=ScatterOptions())", "(output_tensor, input_tensors, root, timeout=None)")
    def scatter(self, outputs: Any, inputs: Any, **given: Any) -> Work:
        """As scatter(), for each output and its list of inputs. Ranks other than the root give no inputs.

        - Shapes: any, the same on all ranks.
        - Dtypes: every one, the same on all ranks.
        - Memory: the outputs are written.
        - Blocks: never; Work.wait() does.
        - Errors: as scatter(); those after the arguments' from Work.wait().
        """
        ys = _arrays(outputs)
        return self._begin_each("lists.scatter", ys, _lists(inputs, len(ys)), **_told(given, "group_src"))

    @forms("(output_tensors, input_tensors, opts=ReduceScatterOptions())",
           "(output, input, op=ReduceOp.SUM, timeout=None)")
    def reduce_scatter(self, outputs: Any, inputs: Any, **given: Any) -> Work:
        """As reduce_scatter(), for each output and its list of inputs.

        - Shapes: entry r of a list is as large as rank r's output.
        - Dtypes: the same on all ranks; those for which op is defined.
        - Memory: the outputs are written.
        - Blocks: never; Work.wait() does.
        - Errors: as reduce_scatter(); those after the arguments' from Work.wait().
        """
        ys = _arrays(outputs)
        return self._begin_each("lists.reduce_scatter", ys, _lists(inputs, len(ys)), **_told(given))

    @forms("(output_tensors, input_tensors, opts=AllToAllOptions())")
    def alltoall(self, outputs: Any, inputs: Any, **given: Any) -> Work:
        """As all_to_all().

        - Shapes: what one rank sends is as large as what the other receives.
        - Dtypes: every one, the same in all lists of all ranks.
        - Memory: an output may be an input; the inputs are copied first in that case.
        - Blocks: never; Work.wait() does.
        - Errors: as all_to_all(); those after the arguments' from Work.wait().
        """
        return self._begin("lists.all_to_all", list(outputs), list(inputs), **_told(given))

    # ---- several operations as one ----

    @forms("(tensors, opts=AllreduceCoalescedOptions())")
    def allreduce_coalesced(self, tensors: Any, **given: Any) -> Work:
        """As all_reduce_coalesced(), without its warning.

        - Shapes: any, the same on all ranks.
        - Dtypes: one for the list.
        - Memory: each array is input and output.
        - Blocks: never; Work.wait() does.
        - Errors: as all_reduce_coalesced(); those after the arguments' from Work.wait().
        """
        return self._begin("coalesce.reduce_all", list(tensors), **_told(given))

    @forms("(output_lists, input_list, opts=AllgatherOptions())")
    def allgather_coalesced(self, outputs: Any, inputs: Any, **given: Any) -> Work:
        """As all_gather_coalesced(), without its warning.

        - Shapes: each list of outputs has the shapes of the inputs.
        - Dtypes: each output has the dtype of its input.
        - Memory: the outputs are written.
        - Blocks: never; Work.wait() does.
        - Errors: as all_gather_coalesced(); those after the arguments' from Work.wait().
        """
        return self._begin("coalesce.gather_all", outputs, inputs, **_told(given))

    @forms("(outputs, inputs, opts=AllgatherOptions())")
    def all_gather_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], **given: Any) -> Work:
        """As all_gather_single(), for each output and its input.

        - Shapes: an output has as many elements as all ranks' inputs together.
        - Dtypes: every one, the same on all ranks.
        - Memory: the outputs are written.
        - Blocks: never; Work.wait() does.
        - Errors: as all_gather_single(); those after the arguments' from Work.wait().
        """
        return self._begin_each("collectives.all_gather_single", outputs, inputs, **_told(given))

    @forms("(outputs, inputs, opts=ReduceScatterOptions())")
    def reduce_scatter_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], **given: Any) -> Work:
        """As reduce_scatter_single(), for each output and its input.

        - Shapes: an input has world size times as many elements as its output.
        - Dtypes: the same on all ranks; those for which op is defined.
        - Memory: the outputs are written.
        - Blocks: never; Work.wait() does.
        - Errors: as reduce_scatter_single(); those after the arguments' from Work.wait().
        """
        return self._begin_each("collectives.reduce_scatter_single", outputs, inputs, **_told(given))

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- messages and barriers ----

    def send(self, tensors: Any, dstRank: int, tag: int) -> Work:  # noqa: N803 - torch's name
        """As isend(), for each array of a list or for one array.

        - Shapes: any; the receiver's array has as many elements.
        - Dtypes: every one; the receiver's is the same.
        - Memory: the arrays must not be changed before the Work has ended.
        - Blocks: never; Work.wait() does.
        - Errors: as isend(); those after the arguments' from Work.wait().
        """
        return self._begin_each("point_to_point.isend", _arrays(tensors), tag=tag, group_dst=dstRank)

    def recv(self, tensors: Any, srcRank: int, tag: int) -> Work:  # noqa: N803
        """As irecv(), for each array of a list or for one array.

        - Shapes: the message has as many elements as the array.
        - Dtypes: the message's is the array's.
        - Memory: the arrays are written.
        - Blocks: never; Work.wait() does.
        - Errors: as irecv(); those after the arguments' from Work.wait().
        """
        return self._begin_each("point_to_point.irecv", _arrays(tensors), tag=tag, group_src=srcRank)

    def recv_anysource(self, arg0: Any, arg1: int) -> Work:
        """As irecv() from any rank, into the arrays arg0, with the tag arg1.

        - Blocks: never; Work.wait() does.
        - Errors: as irecv(); those after the arguments' from Work.wait().
        """
        return self._begin_each("point_to_point.irecv", _arrays(arg0), tag=arg1)

    @forms("(opts=BarrierOptions())", "(timeout=None)")
    def barrier(self, **given: Any) -> Work:
        """A Work that ends when every rank has called barrier().

        - Blocks: never; Work.wait() does.
        - Errors: PeerLost, CollectiveMismatch, Aborted and CollectiveTimeout, from Work.wait().
        """
        return self._begin("barriers.barrier", **_told(given))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """As monitored_barrier() of the module: the error names the ranks that did not call it.

        - Blocks: until every rank has called it, at most `timeout`.
        - Timeout: a timedelta; None takes the group's. The error is a RuntimeError, and the group stays usable.
        - Errors: TypeError for a timeout that is no timedelta. PeerLost when a rank has died.
        """
        import_module(".barriers", __package__).monitored_barrier(self, timeout, wait_all_ranks)

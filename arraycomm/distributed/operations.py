"""ProcessGroup's own methods, over the functions of this package: each begins an operation and gives its Work.

Parameters and names are torch's; ranks are ranks of the group. Where torch takes a list of arrays for one operation, a list
of one or the array itself is taken. timeout: a timedelta for this operation, None takes the group's. opts: one of
options.py, also in the place of op, root or timeout. Errors are those of the functions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module

TYPE_CHECKING = False  # as typing's, which takes longer to load than this package
if TYPE_CHECKING:
    from typing import Any

    from arraycomm.core.group import Group

    from .process_group import ProcessGroup
    from .work import Work

_TIMED = frozenset(("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
                    "barrier", "send", "recv", "isend", "irecv"))


class Timed:
    """A core group whose operations have another default timeout, in seconds."""

    def __init__(self, group: Any, timeout: float) -> None:
        self.group: Group = group.group if isinstance(group, Timed) else group
        self.timeout = timeout

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.group, name)
        return partial(found, timeout=self.timeout) if name in _TIMED else found


def within(group: ProcessGroup, timeout: timedelta | None) -> ProcessGroup:
    """The same group with another default timeout; itself for None. Raises TypeError for what is no timedelta."""
    if timeout is None:
        return group
    view = copy.copy(group)
    view.set_timeout(timeout)
    return view


def _one(tensors: Any) -> Any:
    if not isinstance(tensors, (list, tuple)):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"a list of one array is needed, got {len(tensors)}: a process has one array per operation")
    return tensors[0]


def _inner(lists: Any) -> Any:
    """The list of a list of one list, or a list as it is."""
    return lists[0] if lists and isinstance(lists[0], (list, tuple)) else lists


def _told(opts: Any, timeout: Any = None, op: Any = None, root: Any = None, root_name: str = "") -> dict[str, Any]:
    """Named arguments of the function, of what is given: a value, or one of options.py."""
    from .options import Options

    opts = next((value for value in (opts, op, root, timeout) if isinstance(value, Options)), None)
    if opts is not None:
        timeout = opts.timeout if opts.timeout > timedelta(0) else None
        op, root = getattr(opts, "reduceOp", None), getattr(opts, "rootRank", None)
    told = {"timeout": timeout, "op": op, root_name: root}
    return {name: value for name, value in told.items() if value is not None}


class Operations:
    """What ProcessGroup inherits."""

    def _begin(self: Any, where: str, *args: Any, timeout: timedelta | None = None, **named: Any) -> Any:
        """where: "module.function". The modules import ProcessGroup, so they are imported here, when all is there."""
        module, function = where.split(".")
        called = getattr(import_module(f".{module}", __package__), function)
        return called(*args, group=within(self, timeout), **named)

    def _begin_all(self: Any, where: str, outputs: Sequence[Any], inputs: Sequence[Any], **named: Any) -> Work:
        from .work import Several, Work

        if len(outputs) != len(inputs):
            raise ValueError(f"as many outputs as inputs are needed, got {len(outputs)} and {len(inputs)}")
        works = [self._begin(where, y, x, async_op=True, **named) for y, x in zip(outputs, inputs, strict=True)]
        return Work(Several([work._pending for work in works]), list(outputs), lambda: [work.wait() for work in works])

    # ---- one array a rank ----

    def allreduce(self, tensors: Any, op: Any = None, timeout: timedelta | None = None, opts: Any = None) -> Work:
        return self._begin("collectives.all_reduce", _one(tensors), async_op=True, **_told(opts, timeout, op))

    def broadcast(self, tensors: Any, root: Any = 0, timeout: timedelta | None = None, opts: Any = None) -> Work:
        return self._begin("collectives.broadcast", _one(tensors), async_op=True,
                           **_told(opts, timeout, root=root, root_name="group_src"))

    def reduce(self, tensors: Any, root: Any = 0, op: Any = None, timeout: timedelta | None = None, opts: Any = None) -> Work:
        return self._begin("collectives.reduce", _one(tensors), async_op=True,
                           **_told(opts, timeout, op, root, root_name="group_dst"))

    def all_gather_single(self, output: Any, input: Any, timeout: timedelta | None = None, opts: Any = None) -> Work:
        return self._begin("collectives.all_gather_single", output, input, async_op=True, **_told(opts, timeout))

    def reduce_scatter_single(self, output: Any, input: Any, op: Any = None, timeout: timedelta | None = None,
                              opts: Any = None) -> Work:
        return self._begin("collectives.reduce_scatter_single", output, input, async_op=True, **_told(opts, timeout, op))

    def all_to_all_single(self, output: Any, input: Any, output_split_sizes: Sequence[int] | None = None,
                          input_split_sizes: Sequence[int] | None = None, timeout: timedelta | None = None,
                          opts: Any = None) -> Work:
        return self._begin("collectives.all_to_all_single", output, input, list(output_split_sizes or ()) or None,
                           list(input_split_sizes or ()) or None, async_op=True, **_told(opts, timeout))

    alltoall_base = all_to_all_single

    # ---- lists ----

    def allgather(self, output_tensors: Any, input_tensor: Any, timeout: timedelta | None = None, opts: Any = None) -> Work:
        return self._begin("lists.all_gather", _inner(output_tensors), _one(input_tensor), async_op=True,
                           **_told(opts, timeout))

    def gather(self, output_tensors: Any, input_tensor: Any, root: Any = 0, timeout: timedelta | None = None,
               opts: Any = None) -> Work:
        return self._begin("lists.gather", _one(input_tensor), _inner(output_tensors) or None, async_op=True,
                           **_told(opts, timeout, root=root, root_name="group_dst"))

    def scatter(self, output_tensor: Any, input_tensors: Any, root: Any = 0, timeout: timedelta | None = None,
                opts: Any = None) -> Work:
        return self._begin("lists.scatter", _one(output_tensor), _inner(input_tensors) or None, async_op=True,
                           **_told(opts, timeout, root=root, root_name="group_src"))

    def reduce_scatter(self, output: Any, input: Any, op: Any = None, timeout: timedelta | None = None,
                       opts: Any = None) -> Work:
        return self._begin("lists.reduce_scatter", _one(output), _inner(input), async_op=True, **_told(opts, timeout, op))

    def alltoall(self, output_tensors: Any, input_tensors: Any, timeout: timedelta | None = None, opts: Any = None) -> Work:
        return self._begin("lists.all_to_all", output_tensors, input_tensors, async_op=True, **_told(opts, timeout))

    # ---- several operations as one ----

    def allreduce_coalesced(self, tensors: Any, op: Any = None, opts: Any = None) -> Work:
        return self._begin("coalesce.all_reduce_coalesced", list(tensors), async_op=True, **_told(opts, op=op))

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Work:
        return self._begin("coalesce.all_gather_coalesced", output_lists, input_list, async_op=True, **_told(opts))

    def all_gather_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Work:
        return self._begin_all("collectives.all_gather_single", outputs, inputs, **_told(opts))

    def reduce_scatter_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], op: Any = None,
                                        opts: Any = None) -> Work:
        return self._begin_all("collectives.reduce_scatter_single", outputs, inputs, **_told(opts, op=op))

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- messages and barriers ----

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:  # noqa: N803 - torch's name
        return self._begin("point_to_point.isend", _one(tensors), tag=tag, group_dst=dstRank)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:  # noqa: N803
        return self._begin("point_to_point.irecv", _one(tensors), tag=tag, group_src=srcRank)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._begin("point_to_point.irecv", _one(tensors), tag=tag)

    def barrier(self, timeout: Any = None, opts: Any = None) -> Work:
        return self._begin("barriers.barrier", async_op=True, **_told(opts, timeout))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        import_module(".barriers", __package__).monitored_barrier(self, timeout, wait_all_ranks)

"""The option objects that torch's ProcessGroup methods take in place of parameters. All fields may be set after construction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..operations.reduce_op import ReduceOp

# torch's older names of the methods on whole arrays; the newer names are KIND_single.
BASE = {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base", "all_to_all": "alltoall_base"}


def method(kind: str) -> str:
    """torch's method of a kind, which takes lists where the kind cuts or joins: "allreduce"."""
    return kind.replace("_", "") if kind.startswith("all_") else kind


def of(kind: str) -> Any:
    """The class of its options; None where torch has no such operation."""
    wanted = f"{kind.replace('_', '')}options"
    return next((value for name, value in globals().items() if name.lower() == wanted), None)


class Options:
    """The fields of all options.

    timeout: for this operation; below 0 takes the group's. asyncOp: without effect, because methods always give a Work.
    """

    def __init__(self) -> None:
        self.asyncOp = True
        self.timeout = timedelta(milliseconds=-1)


class _Reducing(Options):
    def __init__(self) -> None:
        super().__init__()
        self.reduceOp: Any = ReduceOp.SUM


class _Rooted(Options):
    def __init__(self) -> None:
        super().__init__()
        self.rootRank = 0


class AllgatherOptions(Options):
    """Options of ProcessGroup.allgather(), all_gather_single() and their coalesced forms: timeout and asyncOp.

    A timeout below 0 (the default) takes the group's. asyncOp has no effect: the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> dist2.AllgatherOptions().asyncOp
        True
    """


class AllToAllOptions(Options):
    """Options of ProcessGroup.alltoall() and all_to_all_single(): timeout and asyncOp.

    A timeout below 0 (the default) takes the group's. asyncOp has no effect: the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> dist.AllToAllOptions().timeout < timedelta(0)
        True
    """


class AllreduceOptions(_Reducing):
    """Options of ProcessGroup.allreduce(): reduceOp, timeout and asyncOp.

    A timeout below 0 (the default) takes the group's. asyncOp has no effect: the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> options = dist.AllreduceOptions()
        >>> options.reduceOp = dist.ReduceOp.MAX
    """


class AllreduceCoalescedOptions(_Reducing):
    """Options of ProcessGroup.allreduce_coalesced(): reduceOp, timeout and asyncOp.

    A timeout below 0 (the default) takes the group's. asyncOp has no effect: the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> dist.AllreduceCoalescedOptions().reduceOp
        <RedOpType.SUM: 0>
    """


class ReduceScatterOptions(_Reducing):
    """Options of ProcessGroup.reduce_scatter(), reduce_scatter_single() and its coalesced form: reduceOp, timeout and asyncOp.

    A timeout below 0 (the default) takes the group's. asyncOp has no effect: the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> dist.ReduceScatterOptions().reduceOp
        <RedOpType.SUM: 0>
    """


class BroadcastOptions(_Rooted):
    """Options of ProcessGroup.broadcast(): rootRank, rootTensor, timeout and asyncOp.

    rootTensor is the index of the array in the list, which holds one. A timeout below 0 (the default) takes the group's. asyncOp
    has
    no effect: the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> dist.BroadcastOptions().rootRank
        0
    """

    rootTensor = 0


class ReduceOptions(_Reducing, _Rooted):
    """Options of ProcessGroup.reduce(): reduceOp, rootRank, rootTensor, timeout and asyncOp.

    rootTensor is the index of the array in the list, which holds one. A timeout below 0 (the default) takes the group's. asyncOp
    has
    no effect: the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> dist.ReduceOptions().rootRank
        0
    """

    rootTensor = 0


class GatherOptions(_Rooted):
    """Options of ProcessGroup.gather(): rootRank, timeout and asyncOp.

    A timeout below 0 (the default) takes the group's. asyncOp has no effect: the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> dist.GatherOptions().rootRank
        0
    """


class ScatterOptions(_Rooted):
    """Options of ProcessGroup.scatter(): rootRank, timeout and asyncOp.

    A timeout below 0 (the default) takes the group's. asyncOp has no effect: the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> dist.ScatterOptions().rootRank
        0
    """


class BarrierOptions(Options):
    """Options of ProcessGroup.barrier(): timeout, device, device_ids and asyncOp.

    device and device_ids have no effect for host memory. A timeout below 0 (the default) takes the group's. asyncOp has no
    effect:
    the methods always give a Work.

    - Blocks: never; it is a value.
    - Errors: none; the method that takes it checks the fields.

    Examples:
        >>> dist.BarrierOptions().device_ids
        []
    """

    def __init__(self) -> None:
        super().__init__()
        self.device: Any = None
        self.device_ids: list[int] = []


class ReconfigureOptions:
    """Options of ProcessGroup.reconfigure().

    Args:
        uuid: a number that these members have not used before.
        handles: the members' handles, a list in the order of their ranks, or a set.
        timeout: a timedelta for the call; None takes the group's.
        hints: accepted and not used.

    - Blocks: never; it is a value.
    - Timeout: DistStoreError from reconfigure() names the members that did not come.
    - Errors: none; reconfigure() checks the fields.

    Examples:
        >>> dist2.ReconfigureOptions(7, ["a", "b"])
        ReconfigureOptions(uuid=7, handles=['a', 'b'], timeout=None)
    """

    def __init__(self, uuid: int = 0, handles: Sequence[str] | set[str] = (), timeout: timedelta | None = None,
                 hints: dict[str, str] | None = None) -> None:
        self.uuid = uuid
        self.handles = handles
        self.timeout = timeout
        self.hints = hints or {}

    def __repr__(self) -> str:
        return f"ReconfigureOptions(uuid={self.uuid!r}, handles={self.handles!r}, timeout={self.timeout!r})"

"""The option objects that torch's ProcessGroup methods take in place of parameters. All fields may be set after construction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from arraycomm.core.base.typed import Any

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
    """timeout: for this operation; below 0 takes the group's. asyncOp: without effect, methods always give a Work."""

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
    """Of allgather() and its relatives."""


class AllToAllOptions(Options):
    """Of alltoall() and all_to_all_single()."""


class AllreduceOptions(_Reducing):
    """Of allreduce()."""


class AllreduceCoalescedOptions(_Reducing):
    """Of allreduce_coalesced()."""


class ReduceScatterOptions(_Reducing):
    """Of reduce_scatter() and its relatives."""


class BroadcastOptions(_Rooted):
    """Of broadcast(). rootTensor: which array of the list; lists hold one."""

    rootTensor = 0


class ReduceOptions(_Reducing, _Rooted):
    """Of reduce(). rootTensor as in BroadcastOptions."""

    rootTensor = 0


class GatherOptions(_Rooted):
    """Of gather()."""


class ScatterOptions(_Rooted):
    """Of scatter()."""


class BarrierOptions(Options):
    """Of barrier(). device and device_ids: without effect for host memory."""

    def __init__(self) -> None:
        super().__init__()
        self.device: Any = None
        self.device_ids: list[int] = []


class ReconfigureOptions:
    """Of reconfigure(). uuid: a number that these members have not used before. handles: of the members, a list in the order
    of their ranks, or a set. timeout: for the call; None takes the group's. hints: accepted and not used."""

    def __init__(self, uuid: int = 0, handles: Sequence[str] | set[str] = (), timeout: timedelta | None = None,
                 hints: dict[str, str] | None = None) -> None:
        self.uuid = uuid
        self.handles = handles
        self.timeout = timeout
        self.hints = hints or {}

    def __repr__(self) -> str:
        return f"ReconfigureOptions(uuid={self.uuid!r}, handles={self.handles!r}, timeout={self.timeout!r})"

"""The object-oriented successor of torch.distributed's interface, for any array with DLPack: groups are objects without a
global registry, and a process may have ranks in several worlds.

    from arraycomm import dist2
    group = dist2.new_group("gloo", timeout=timedelta(seconds=60), device="cpu")
    group.allreduce(x).wait()

docs/reference/dist2.md describes it. It is built on arraycomm.distributed: the same groups, options, stores and Works.
"""

from arraycomm.distributed._dist2 import (
    ProcessGroup,
    ProcessGroupFactory,
    ReduceOp,
    current_process_group,
    new_group,
    process_group,
    register_backend,
)
from arraycomm.distributed.operations.work import Work
from arraycomm.distributed.process_groups.hooks import HookOpName, PostHookArgs, PreHookArgs
from arraycomm.distributed.process_groups.options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReconfigureOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from arraycomm.distributed.process_groups.window import Window, WindowAccessType, WindowAttr
from arraycomm.distributed.store import FileStore, HashStore, PrefixStore, Store
from arraycomm.distributed.tcp_store import TCPStore

__all__ = [
    "AllToAllOptions", "AllgatherOptions", "AllreduceCoalescedOptions", "AllreduceOptions", "BarrierOptions", "BroadcastOptions",
    "FileStore", "GatherOptions", "HashStore", "HookOpName", "PostHookArgs", "PreHookArgs", "PrefixStore", "ProcessGroup",
    "ProcessGroupFactory", "ReconfigureOptions", "ReduceOp", "ReduceOptions", "ReduceScatterOptions", "ScatterOptions", "Store",
    "TCPStore", "Window", "WindowAccessType", "WindowAttr", "Work", "current_process_group", "new_group", "process_group",
    "register_backend",
]

"""torch.distributed's names, parameters and behaviour for any array that supports DLPack; torch is not needed.

    import arraycomm.distributed as dist

docs/reference/distributed.md describes the behaviour. The imports below show in which module each name is defined.

The examples in docstrings need `import numpy as np` and `from datetime import timedelta`. Those "on each of two ranks" run in two
processes after `dist.init_process_group()`; the others run as they are.
"""

from __future__ import annotations

from arraycomm.core.base.errors import DistBackendError, DistError, DistNetworkError, DistStoreError, QueueEmptyError

from .debug import DebugLevel, breakpoint, get_debug_level, set_debug_level, set_debug_level_from_env
from .device_mesh import DeviceMesh, init_device_mesh
from .operations.barriers import barrier, monitored_barrier
from .operations.coalesce import _coalescing_manager as _coalescing_manager
from .operations.coalesce import all_gather_coalesced, all_reduce_coalesced
from .operations.collectives import (
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_to_all_single,
    broadcast,
    reduce,
    reduce_scatter_single,
    reduce_scatter_tensor,
)
from .operations.collectives import all_gather_into_tensor as _all_gather_base  # noqa: F401
from .operations.collectives import reduce_scatter_tensor as _reduce_scatter_base  # noqa: F401
from .operations.lists import all_gather, all_to_all, gather, reduce_scatter, scatter
from .operations.multi_gpu import (
    all_gather_multigpu,
    all_reduce_multigpu,
    broadcast_multigpu,
    reduce_multigpu,
    reduce_scatter_multigpu,
)
from .operations.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from .operations.point_to_point import P2POp, batch_isend_irecv, irecv, isend, recv, send
from .operations.reduce_op import ReduceOp, reduce_op, supports_complex
from .operations.reduce_op import _make_nccl_premul_sum as _make_nccl_premul_sum
from .operations.work import Work
from .operations.work import Work as _Work  # noqa: F401
from .process_groups.backend import Backend, BackendConfig, get_default_backend_for_device
from .process_groups.groups import (
    GroupName,
    get_backend,
    get_backend_config,
    get_global_rank,
    get_group_rank,
    get_pg_count,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    new_group,
)
from .process_groups.init import (
    destroy_process_group,
    get_node_local_rank,
    init_process_group,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_initialized,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
    is_ucc_available,
    is_xccl_available,
)
from .process_groups.nccl import ProcessGroupNCCL as ProcessGroupNCCL
from .process_groups.options import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from .process_groups.process_group import ProcessGroup
from .process_groups.profiling import record_comm
from .process_groups.subgroups import new_subgroups, new_subgroups_by_enumeration, shrink_group, split_group
from .process_groups.world import GroupMember, default_pg_timeout, group
from .process_groups.world import is_outside as _rank_not_in_group  # noqa: F401
from .processes import ProcessExitedException, ProcessRaisedException, spawn
from .rendezvous import register_rendezvous_handler, rendezvous
from .sampler import DistributedSampler
from .store import FileStore, HashStore, PrefixStore, Store
from .tcp_store import TCPStore
from .torch_only import MODULES as _MODULES


def __getattr__(name: str) -> object:
    """Modules that torch.distributed has loaded when it is imported itself; what needs torch, where torch is."""
    from importlib import import_module

    try:
        if name in ("constants", "distributed_c10d", "nn", "optim", *_MODULES):
            return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"arraycomm.distributed.{name} is not here: {error}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("_"))})


__all__ = [
    "AllToAllOptions", "AllreduceCoalescedOptions", "AllreduceOptions", "Backend", "BackendConfig", "BarrierOptions",
    "BroadcastOptions", "DebugLevel", "DeviceMesh", "DistBackendError", "DistError", "DistNetworkError", "DistStoreError",
    "DistributedSampler", "FileStore", "GatherOptions", "GroupMember", "GroupName", "HashStore", "P2POp", "PrefixStore",
    "ProcessExitedException", "ProcessGroup", "ProcessGroupNCCL", "ProcessRaisedException", "QueueEmptyError", "ReduceOp",
    "ReduceOptions", "ReduceScatterOptions", "ScatterOptions", "Store", "TCPStore", "Work", "all_gather", "all_gather_coalesced",
    "all_gather_into_tensor", "all_gather_multigpu", "all_gather_object", "all_gather_single", "all_reduce",
    "all_reduce_coalesced", "all_reduce_multigpu", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv",
    "breakpoint", "broadcast", "broadcast_multigpu", "broadcast_object_list", "default_pg_timeout", "destroy_process_group",
    "gather", "gather_object", "get_backend", "get_backend_config", "get_debug_level", "get_default_backend_for_device",
    "get_global_rank", "get_group_rank", "get_node_local_rank", "get_pg_count", "get_process_group_ranks", "get_rank",
    "get_world_size", "group", "init_device_mesh", "init_process_group", "irecv", "is_available", "is_backend_available",
    "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched",
    "is_ucc_available", "is_xccl_available", "isend", "monitored_barrier", "new_group", "new_subgroups",
    "new_subgroups_by_enumeration", "record_comm", "recv", "recv_object_list", "reduce", "reduce_multigpu", "reduce_op",
    "reduce_scatter", "reduce_scatter_multigpu", "reduce_scatter_single", "reduce_scatter_tensor", "register_rendezvous_handler",
    "rendezvous", "scatter", "scatter_object_list", "send", "send_object_list", "set_debug_level", "set_debug_level_from_env",
    "shrink_group", "spawn", "split_group", "supports_complex",
]

"""torch.distributed's names, parameters and behaviour for any array that speaks DLPack; torch is not needed.

    import arraycomm.distributed as dist

What it does is in docs/distributed.md; where the names come from stands below, one line per module.
"""

from __future__ import annotations

from arraycomm.core.errors import DistBackendError, DistError, DistNetworkError, DistStoreError, QueueEmptyError

from .backend import Backend, BackendConfig, get_default_backend_for_device
from .groups import (
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
from .init import (
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
from .process_group import ProcessGroup
from .subgroups import new_subgroups, new_subgroups_by_enumeration, shrink_group, split_group
from .world import GroupMember, default_pg_timeout, group

__all__ = [
    "Backend",
    "BackendConfig",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "GroupMember",
    "ProcessGroup",
    "QueueEmptyError",
    "default_pg_timeout",
    "destroy_process_group",
    "get_backend",
    "get_backend_config",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "shrink_group",
    "split_group",
]

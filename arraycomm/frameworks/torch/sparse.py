"""all_reduce of sparse tensors (COO)."""

from __future__ import annotations

import torch

from arraycomm.distributed.process_groups.process_group import ProcessGroup

from ..sparse import sparse_all_reduce


@torch.no_grad()
def all_reduce_in_place(group: ProcessGroup, tensor: torch.Tensor, op: str) -> None:
    """As all_reduce(); what the tensor held is replaced."""
    tensor.copy_(all_reduce(group, tensor, op.lower()))


@torch.no_grad()
def all_reduce(group: ProcessGroup, tensor: torch.Tensor, op: str) -> torch.Tensor:
    """A new one, coalesced, on the tensor's device; what lies on a GPU goes by the host.

    RuntimeError for reductions in which what is missing would not count as zeros.
    """
    if op not in ("sum", "avg"):
        raise RuntimeError(f"all_reduce of sparse tensors is SUM or AVG, got {op.upper()}; use to_dense()")
    given = tensor.detach().coalesce()
    indices, values = sparse_all_reduce(group.core, given.indices().cpu(), given.values().cpu(),
                                        given.shape[: given.sparse_dim()], op=op)
    return torch.sparse_coo_tensor(indices.to(given.device), values.to(given.device), given.shape, is_coalesced=True,
                                   check_invariants=False)

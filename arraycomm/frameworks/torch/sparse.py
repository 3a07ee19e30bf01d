"""Sparse tensors (COO) in torch.distributed's all_reduce."""

from __future__ import annotations

import torch
import torch.distributed as dist

from arraycomm.distributed.process_group import ProcessGroup

from ..sparse import sparse_all_reduce

_OPS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "avg"}


@torch.no_grad()
def all_reduce_(group: ProcessGroup, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> None:
    """In place; the result is coalesced. RuntimeError for reductions in which what is missing would not count as zeros."""
    if op not in _OPS:
        raise RuntimeError(f"all_reduce of sparse tensors is SUM or AVG, got {op}; use to_dense()")
    given = tensor.detach().coalesce()
    indices, values = sparse_all_reduce(group.core, given.indices(), given.values(), given.shape[: given.sparse_dim()],
                                        op=_OPS[op])
    tensor.copy_(torch.sparse_coo_tensor(indices, values, given.shape, is_coalesced=True))

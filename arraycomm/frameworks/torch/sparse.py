"""all_reduce of torch's sparse tensors, for arraycomm.distributed."""

from __future__ import annotations

from hashlib import sha256

import torch

from arraycomm.core.group.exchange import gather_integers, same_values
from arraycomm.distributed.process_groups.process_group import ProcessGroup


@torch.no_grad()
def all_reduce_sparse(group: ProcessGroup, tensor: torch.Tensor, op: str) -> None:
    """all_reduce of a sparse tensor (COO), in place. The result is coalesced; a tensor on a GPU goes through the host.

    Every rank gathers all ranks' entries and adds them itself. RuntimeError for reductions in which what is missing would not
    count as zeros, CollectiveMismatch where ranks differ in shape, dtype or op.
    """
    if op not in ("sum", "avg"):
        raise RuntimeError(f"all_reduce of sparse tensors is SUM or AVG, got {op.upper()}; use to_dense()")
    given, core = tensor.detach().coalesce(), group.core
    indices, values, shape = given.indices().cpu(), given.values().cpu(), given.shape
    about = sha256(f"{tuple(shape)} {len(indices)} {values.dtype} {op}".encode()).digest()[:7]
    told = gather_integers(core._communicator, [int.from_bytes(about, "big"), len(values)], None)
    same_values(core, [kind for kind, _ in told], "give sparse tensors of another shape, dtype or reduction")
    counts = [count for _, count in told]
    places, every = core.all_gather(indices.t(), counts=counts), core.all_gather(values, counts=counts)
    if values.dtype in (torch.float16, torch.bfloat16):
        every = every.float()  # so that the sum is rounded once
    total = torch.sparse_coo_tensor(places.t(), every, shape, check_invariants=False).coalesce()  # adds in rank order
    sums = total.values()
    if op == "avg":
        parts = torch.view_as_real(sums) if sums.is_complex() else sums
        parts.div_(len(counts), rounding_mode=None if parts.is_floating_point() else "trunc")
    tensor.copy_(torch.sparse_coo_tensor(total.indices().to(given.device), sums.to(given.device, values.dtype), shape,
                                         is_coalesced=True, check_invariants=False))

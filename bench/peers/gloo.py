"""torch.distributed with gloo."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from .protocol import Call, Peer


class Contender(Peer):
    def __init__(self) -> None:
        import torch
        import torch.distributed

        # All ranks are on this host, and gloo would go by what the hostname resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        self.torch, self.dist = torch, torch.distributed
        self.dist.init_process_group("gloo")
        self.rank, self.size = self.dist.get_rank(), self.dist.get_world_size()

    def call(self, operation: str, x: Any, out: Any) -> Call:
        dist = self.dist
        given, got = self.torch.from_numpy(x), self.torch.from_numpy(out)
        calls: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, got),
            "all_gather": partial(_first(dist, "all_gather_single", "all_gather_into_tensor"), got, given),
            "reduce_scatter": partial(_first(dist, "reduce_scatter_single", "reduce_scatter_tensor"), got, given),
            "all_to_all": partial(dist.all_to_all_single, got, given),
            "broadcast": partial(dist.broadcast, got, 0),
            "barrier": dist.barrier,
        }
        if operation == "sendrecv":
            return self.one_way(partial(dist.send, given), partial(dist.recv, got))
        return calls[operation]

    def barrier(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        self.dist.destroy_process_group()


def _first(module: Any, *names: str) -> Any:
    """The first name that this version of torch has: an old name warns, and that takes time, in a new one."""
    return next(getattr(module, name) for name in names if hasattr(module, name))

"""torch.distributed with gloo."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .protocol import Call, Peer


class Contender(Peer):
    def __init__(self) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def call(self, operation: str, x: Any, out: Any) -> Call:
        given, got = torch.from_numpy(x), torch.from_numpy(out)
        calls: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, got),
            "all_gather": partial(dist.all_gather_into_tensor, got, given),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, got, given),
            "all_to_all": partial(dist.all_to_all_single, got, given),
            "broadcast": partial(dist.broadcast, got, 0),
            "barrier": dist.barrier,
        }
        if operation == "sendrecv":
            return self.one_way(partial(dist.send, given), partial(dist.recv, got))
        return calls[operation]

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()

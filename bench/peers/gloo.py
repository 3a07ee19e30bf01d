"""torch.distributed with gloo."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .protocol import Call, Missing, Peer


class Contender(Peer):
    dtypes = ("float32", "bfloat16")

    def __init__(self, name: str) -> None:
        import torch
        import torch.distributed

        super().__init__(name)
        # All ranks are on this host; by default gloo uses the address to which the hostname resolves.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        self.torch, self.dist = torch, torch.distributed
        self.dist.init_process_group("gloo")
        self.rank, self.size = self.dist.get_rank(), self.dist.get_world_size()

    @classmethod
    def network(cls, name: str) -> bool:
        return True

    @classmethod
    def version(cls, name: str) -> str:
        import torch
        import torch.distributed

        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            raise Missing("this torch was built without gloo: pip install torch")
        return f"torch {torch.__version__}"

    @classmethod
    def spread(cls, name: str, addresses: list[str], interface: str, directory: str) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": interface}

    @classmethod
    def remedy(cls, name: str) -> str:
        return "pip install torch numpy"

    def place(self, values: NDArray[np.float32], dtype: str) -> Any:
        tensor = self.torch.from_numpy(values)
        return tensor if dtype == "float32" else tensor.to(self.torch.bfloat16)

    def values(self, array: Any) -> NDArray[np.float32]:
        held: NDArray[np.float32] = array.float().numpy()
        return held

    def call(self, operation: str, x: Any, out: Any) -> Call:
        dist = self.dist
        calls: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, out),
            "all_gather": partial(_first(dist, "all_gather_single", "all_gather_into_tensor"), out, x),
            "reduce_scatter": partial(_first(dist, "reduce_scatter_single", "reduce_scatter_tensor"), out, x),
            "all_to_all": partial(dist.all_to_all_single, out, x),
            "broadcast": partial(dist.broadcast, out, 0),
            "sendrecv": self.one_way(partial(dist.send, x), partial(dist.recv, out)),
            "barrier": dist.barrier,
        }
        return calls[operation]

    def barrier(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        self.dist.destroy_process_group()


def _first(module: Any, *names: str) -> Any:
    """The first name that this version of torch has: in a newer version the old name issues a warning, which takes time."""
    return next(getattr(module, name) for name in names if hasattr(module, name))

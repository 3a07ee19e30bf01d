"""The environment by which a rank knows who it is and where the others meet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A rank in the world, and the world's store."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    address: str
    port: int

    def variables(self, secret_fd: int | None) -> dict[str, str]:
        """torchrun's names, and ours: where the store is hosted and which inherited descriptor holds the secret."""
        variables = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "NODE_RANK": str(self.node_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "ARRAYCOMM_STORE": f"launcher@{self.address}:{self.port}",
        }
        if secret_fd is not None:
            variables["ARRAYCOMM_SECRET_FD"] = str(secret_fd)
        return variables



def enough_for_xla(environ: Mapping[str, str]) -> dict[str, str]:
    """Two threads where JAX would have one in which it executes programs: a program that waits there for its peers keeps that
    from its own callbacks (jax.debug.callback). It goes by PJRT_NPROC, else NPROC, else the processors that it may run on."""
    try:
        threads = environ.get("NPROC") or str(len(os.sched_getaffinity(0)))
    except OSError:  # a sandbox forbids to ask
        threads = str(os.cpu_count())
    return {"PJRT_NPROC": "2"} if threads == "1" and not environ.get("PJRT_NPROC") else {}

"""ray.util.collective over arraycomm, with real Ray: python -m tests.frameworks.ray_actors [RANKS]

No package that the suite asks for: Ray has 70 MB, and starts daemons. test_ray.py runs this where it is installed, as .ci/run
does.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import ray
from ray.util import collective
from ray.util.collective.types import ReduceOp


@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, rank: int, size: int) -> None:
        import arraycomm.frameworks.ray  # noqa: F401 - registers the back end

        self.rank, self.size = rank, size

    def open(self, name: str) -> None:
        collective.init_collective_group(self.size, self.rank, "arraycomm", name)

    def collectives(self, name: str) -> int:
        rank, size = self.rank, self.size
        x = np.arange(6.0).reshape(2, 3) + rank
        collective.allreduce(x, name)
        assert collective.get_rank(name) == rank and collective.get_collective_group_size(name) == size
        assert (x == size * np.arange(6.0).reshape(2, 3) + sum(range(size))).all()
        collective.allreduce(most := np.full(3, rank), name, ReduceOp.MAX)
        assert (most == size - 1).all()
        collective.reduce(at_root := np.full(2, rank + 1), 1, name, ReduceOp.PRODUCT)
        assert (at_root == (np.prod(np.arange(1, size + 1)) if rank == 1 else rank + 1)).all()
        collective.broadcast(shared := np.full(4, rank), size - 1, name)
        assert (shared == size - 1).all()
        everything = [np.zeros(2) for _ in range(size)]
        collective.allgather(everything, np.full(2, float(rank)), name)
        assert [part.tolist() for part in everything] == [[r, r] for r in range(size)]
        collective.reducescatter(part := np.zeros(3), [np.full(3, float(r)) for r in range(size)], name)
        assert (part == rank * size).all()
        self._messages(name)
        collective.barrier(name)
        return os.getpid()

    def _messages(self, name: str) -> None:
        if self.rank == 0:
            collective.send(np.full(5, 7.0), 1, name)
        elif self.rank == 1:
            collective.recv(got := np.zeros(5), 0, name)
            assert (got == 7).all()

    def close(self, name: str) -> None:
        collective.destroy_collective_group(name)

    def fails(self, name: str) -> str:
        try:
            while True:
                collective.allreduce(np.ones(1), name)
        except Exception as error:
            return f"{type(error).__name__} {getattr(error, 'ranks', None)}"


def main(size: int) -> None:
    import arraycomm.frameworks.ray  # noqa: F401 - for the declarative form, which looks on the driver

    ray.init(num_cpus=size, include_dashboard=False, configure_logging=False, log_to_driver=True)
    actor: Any = Rank  # what ray.remote() makes of it
    ranks: list[Any] = [actor.remote(rank, size) for rank in range(size)]
    for name in ("default", "default", "second"):  # a name may come again once its group is destroyed
        ray.get([rank.open.remote(name) for rank in reversed(ranks)], timeout=60)
        assert len(set(ray.get([rank.collectives.remote(name) for rank in ranks], timeout=60))) == size
        ray.get([rank.close.remote(name) for rank in ranks], timeout=60)
    collective.create_collective_group(ranks, size, list(range(size)), "arraycomm", "declared")
    ray.get([rank.collectives.remote("declared") for rank in ranks], timeout=60)
    waiting = [rank.fails.remote("declared") for rank in ranks[:-1]]
    ray.kill(ranks[-1])
    assert ray.get(waiting, timeout=60) == [f"PeerLost ({size - 1},)"] * (size - 1)
    print(f"ray {ray.__version__}: {size} ranks: ok")
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

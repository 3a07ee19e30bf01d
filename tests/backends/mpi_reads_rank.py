"""A rank of test_mpi.py: `mpi_reads_rank.py CASE`. Ranks read each other's long arrays where they lie."""

from __future__ import annotations

import mmap
import sys

import numpy as np

import arraycomm
from tests.backends.mpi_rank import say


def unreadable(group: arraycomm.Group) -> None:
    """One of them has memory that only its owner can read."""
    count = 1_200_000 - 1_200_000 % group.size
    odd = np.frombuffer(mmap.mmap(-1, count * 8, prot=mmap.PROT_WRITE))
    usual = np.empty(count)
    for x in (usual, odd if group.rank == 0 else usual, usual):
        x[:] = np.arange(count) + group.rank * count
        every = np.arange(count * group.size, dtype=np.float64).reshape(group.size, group.size, -1)
        say(group, f"right {np.array_equal(group.all_to_all(x), every[:, group.rank].ravel())}")


def gives_up(group: arraycomm.Group) -> None:
    """Rank 0 does, anywhere in a long all_to_all, and writes its array at once: nobody takes what it writes then."""
    rows = (1 << 21) // group.size
    x, out, came, wrong = np.empty(rows * group.size), np.empty(rows * group.size), 0, 0
    for trial in range(1, 31):
        part = group.split(0)
        assert part is not None
        x.fill(part.rank)
        part.barrier()
        try:
            part.all_to_all(x, out=out, timeout=2e-4 * trial if part.rank == 0 else 20)
            came += 1
            wrong += not np.array_equal(out, np.repeat(np.arange(group.size), rows))
        except arraycomm.GroupError:
            x.fill(-1)
        part.close()
        group.barrier()
    say(group, f"wrong {wrong}, gave up {came < 30}")


if __name__ == "__main__":
    with arraycomm.init(timeout=60) as world:
        {"unreadable": unreadable, "gives up": gives_up}[sys.argv[1]](world)

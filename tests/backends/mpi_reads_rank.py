"""A rank of test_mpi.py: `mpi_reads_rank.py CASE`. Ranks read each other's long arrays where they lie.

That is one of the two ways that the engine tries in turn (mpi_ways.c), after pieces; two calls each."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

import arraycomm
from tests.backends.mpi_rank import say


def before_reads(call: Callable[[], object]) -> None:
    """The next call reads."""
    for _ in range(2):
        call()


def unreadable(group: arraycomm.Group) -> None:
    """One of them has memory that only its owner can read."""
    count = 1_200_000 - 1_200_000 % group.size
    odd = np.frombuffer(mmap.mmap(-1, count * 8, prot=mmap.PROT_WRITE))
    usual = np.empty(count)
    before_reads(lambda: group.all_to_all(usual))
    for x in (usual, odd if group.rank == 0 else usual, usual):
        x[:] = np.arange(count) + group.rank * count
        every = np.arange(count * group.size, dtype=np.float64).reshape(group.size, group.size, -1)
        say(group, f"right {np.array_equal(group.all_to_all(x), every[:, group.rank].ravel())}")


def gives_up(group: arraycomm.Group) -> None:
    """Rank 0 does, anywhere in a long call, and writes its array at once: nobody takes what it writes then."""
    rows = (1 << 21) // group.size
    x, out, came, wrong = np.empty(rows * group.size), np.empty(rows * group.size), 0, 0
    for trial in range(1, 31):
        part = group.split(0)
        assert part is not None
        call = partial(part.all_to_all, x, out=out) if trial % 2 else partial(part.all_gather, x[:rows], out=out)
        x.fill(part.rank)
        before_reads(call)
        part.barrier()
        try:
            call(timeout=2e-4 * trial if part.rank == 0 else 20)
            came += 1
            wrong += not np.array_equal(out, np.repeat(np.arange(group.size), rows))
        except arraycomm.GroupError:
            x.fill(-1)
        part.close()
        group.barrier()
    say(group, f"wrong {wrong}, gave up {came < 30}")


def ways(group: arraycomm.Group) -> None:
    """Each of them gives the same, also where results lie over what was given."""
    rows, me, root, wrong = 400_003, group.rank, group.size - 1, []
    block = slice(me * rows, (me + 1) * rows)
    for trial in range(5):
        all_of = np.arange(group.size * group.size * rows, dtype=np.float32).reshape(group.size, -1) + trial
        mine, first = all_of[me].copy(), all_of[:, :rows].ravel()
        over = np.zeros_like(mine)
        over[block] = mine[:rows]
        gathered = group.gather(mine[:rows], root)
        part = group.scatter(mine if me == root else None, root, out=np.empty(rows, np.float32))
        found = {
            "all_to_all": np.array_equal(group.all_to_all(mine), all_of[:, block].ravel()),
            "all_gather": np.array_equal(group.all_gather(mine[:rows]), first),
            "all_gather in place": np.array_equal(group.all_gather(over[block], out=over), first),
            "gather": gathered is None if me != root else np.array_equal(gathered, first),
            "scatter": np.array_equal(part, all_of[root, block]),
            "broadcast": np.array_equal(group.broadcast(mine, root), all_of[root]),
            "broadcast apart": np.array_equal(group.broadcast(all_of[me], root, out=np.empty_like(mine)), all_of[root]),
        }
        wrong += [f"{name} {trial}" for name, right in found.items() if not right]
    say(group, f"wrong {wrong}")


if __name__ == "__main__":
    with arraycomm.init(timeout=60) as world:
        {"unreadable": unreadable, "gives up": gives_up, "ways": ways}[sys.argv[1]](world)

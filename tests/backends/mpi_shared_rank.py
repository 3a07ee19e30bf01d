"""A rank of test_mpi_shared.py: `mpi_shared_rank.py CASE`. Collectives through memory that the ranks of one host share."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

import arraycomm
from tests.backends.mapped import maps
from tests.backends.mpi_rank import say

Array = NDArray[Any]
# Elements and dtype: around every length where the way changes, and pieces and slices whose ends differ.
LENGTHS = [(0, "float32"), (3, "int16"), (23, "float32"), (600, "complex128"), (2050, "float32"), (9_001, "uint8"),
           (16_400, "float32"), (70_001, "uint8"), (33_001, "float64"), (131_073, "float32"), (70_003, "complex128"),
           (524_291, "int16"), (1_300_001, "uint8"), (600_011, "float32"), (3_000_001, "float32"), (4_200_000, "float32")]


def inputs(group: arraycomm.Group, count: int, dtype: str) -> list[Array]:
    """Every rank's; not the same in any two pieces."""
    return [(np.arange(count) % 251 * 3 + np.arange(count) // 4099 + 7 * rank).astype(dtype) for rank in range(group.size)]


def blocks(x: Array, size: int) -> list[Array]:
    return list(x[:len(x) - len(x) % size].reshape(size, -1))


def calls(group: arraycomm.Group, every: list[Array], root: int) -> Iterator[tuple[str, Any, Any]]:
    """Operations, what they gave, and what they are to give, by NumPy: None on ranks that get nothing."""
    size, me, dtype = group.size, group.rank, every[0].dtype
    total, own, at_root = reduce(np.add, every), every[me], me == root
    parts = [blocks(x, size) for x in every]
    given = np.concatenate(parts[me])
    yield "all_reduce", group.all_reduce(own), total
    x = own.copy()
    yield "all_reduce in place", group.all_reduce(x, out=x), total
    if dtype.kind != "c":
        yield "all_reduce max", group.all_reduce(own, op="max"), reduce(np.maximum, every)
    yield "reduce", group.reduce(own, root), total if at_root else None
    yield "broadcast", group.broadcast(own, root), every[root]
    x = own.copy()
    yield "broadcast in place", group.broadcast(x, root, out=x), every[root]
    shares = [part[rank] for rank, part in enumerate(parts)]
    joined = np.concatenate(shares)
    yield "all_gather", group.all_gather(shares[me]), joined
    x = np.zeros_like(joined)
    mine = blocks(x, size)[me]
    mine[:] = shares[me]
    yield "all_gather in place", group.all_gather(mine, out=x), joined
    yield "gather", group.gather(shares[me], root), joined if at_root else None
    yield "scatter", group.scatter(given if at_root else None, root, like=shares[me]), parts[root][me]
    yield "reduce_scatter", group.reduce_scatter(given), reduce(np.add, [part[me] for part in parts])
    yield "all_to_all", group.all_to_all(given), np.concatenate([part[me] for part in parts])
    group.barrier()


def same(got: Any, wanted: Any) -> bool:
    return (got is None and wanted is None) or (got is not None and wanted is not None and np.array_equal(got, wanted))


def matrix(group: arraycomm.Group) -> None:
    for number, (count, dtype) in enumerate(LENGTHS):
        made = calls(group, inputs(group, count, dtype), number % group.size)
        wrong = [name for name, got, wanted in made if not same(got, wanted)]
        say(group, f"wrong {wrong}")


def under_way(group: arraycomm.Group) -> None:
    """Several at a time, short and long, by roots that change, without a meeting between them."""
    counts = [300_001, 5, 70_000, 1, 2_000_003, 900]
    every = [inputs(group, count, "float32") for count in counts]
    works: list[tuple[Any, Array]] = []
    for turn, (index, count) in itertools.product(range(4), enumerate(counts)):
        root = (turn + index) % group.size
        works.append((group.broadcast(every[index][group.rank].copy(), root, async_op=True), every[index][root]))
        if (turn + index) % 3 == 0 and count < 1_000_000:
            works.append((group.all_reduce(every[index][group.rank], async_op=True), reduce(np.add, every[index])))
    wrong = [number for number, (work, wanted) in enumerate(works) if not same(work.result(), wanted)]
    say(group, f"wrong {wrong}")


def differ(group: arraycomm.Group) -> None:
    """One rank calls another operation than the others, who go piece by piece: all are told, and nobody's array is written."""
    count, last = 120_000, group.size - 1
    x, out = np.ones(count), np.zeros(count)
    every: dict[str, Callable[[arraycomm.Group], Any]] = {
        "all_reduce": lambda part: part.all_reduce(x, out=out), "shorter": lambda part: part.all_reduce(x[:-1], out=out[:-1]),
        "max": lambda part: part.all_reduce(x, op="max", out=out), "broadcast": lambda part: part.broadcast(x, 0, out=out),
        "other root": lambda part: part.broadcast(x, last, out=out), "short": lambda part: part.broadcast(x[:8], 0),
        "all_to_all": lambda part: part.all_to_all(x, out=out), "barrier": lambda part: part.barrier(),
        "messages": lambda part: part.all_gather(np.ones(4 * count))}
    for usual, odd in itertools.permutations(every, 2):
        part = group.split(0)
        assert part is not None
        try:
            every[odd if group.rank == last else usual](part)
            part.close()  # who has taken or given a short broadcast may have gone on
            say(group, f"{usual}, {odd}: no error")
        except arraycomm.CollectiveMismatch:
            part.close()
        if out.any():
            say(group, f"{usual}, {odd}: written")
        group.barrier()
    say(group, "all found")


def loses(group: arraycomm.Group, leave: Callable[[arraycomm.Group], None]) -> None:
    """Rank 1 goes somewhere in long operations."""
    x, part = np.ones(960_000, np.float32), group.split(0)
    assert part is not None
    if part.rank == 1:
        leave(part)
    try:
        for turn in itertools.count():
            [part.all_reduce, part.broadcast, part.reduce_scatter][turn % 3](x)
    except arraycomm.PeerLost as error:
        say(group, f"PeerLost {error.ranks}")


def dies(part: arraycomm.Group) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.2)


def closes(part: arraycomm.Group) -> None:
    part.all_reduce(np.ones(960_000, np.float32))
    part.close()
    sys.exit()


def ends_well(group: arraycomm.Group) -> None:
    """Rank 1 comes and fails after its end while rank 0 looks for news only: what rank 0 has all of ends well there too."""
    x, wrong, gate = np.ones(20_000, np.float32), [], os.environ["STANDIN_MPI_GATE"]
    for _ in range(10):
        part = group.split(0)
        assert part is not None
        try:
            if part.rank == 0:
                os.environ["STANDIN_MPI"] = "held"
            else:
                os.close(os.open(gate, os.O_RDONLY))  # rank 0 looks
            part.all_gather(x)
        except arraycomm.GroupError as error:
            wrong.append(str(error))
        if part.rank == 1:
            part.abort("after its end")
            os.close(os.open(gate, os.O_WRONLY))
        part.close()
        group.barrier()
    say(group, f"wrong {wrong}")


def scribbles(group: arraycomm.Group) -> None:
    """Rank 1 writes anything anywhere in the memory that it shares: rank 0 gets errors or wrong numbers, in its array only."""
    chance, count = np.random.default_rng(1), 60_000
    around = np.full(3 * count, 7.0)
    out = around[count:2 * count]
    for _ in range(12):
        before, part = maps(), group.split(0)
        assert part is not None
        try:
            part.all_reduce(np.ones(count))
            if part.rank == 1:
                ((first, last),) = (range.split("-") for range in maps() - before)
                words = (int(last, 16) - int(first, 16)) // 8
                shared, seat = np.ctypeslib.as_array((ctypes.c_uint64 * words).from_address(int(first, 16))), words // part.size
                for _ in range(200):
                    places = np.array([0, 8, *chance.integers(seat, size=200), *chance.integers(600, size=50)])
                    places += chance.integers(part.size) * seat
                    shared[places] = chance.integers(1 << 64, size=len(places), dtype=np.uint64)
            else:
                for call in (part.all_reduce, part.broadcast) * 5:
                    call(np.ones(count), out=out, timeout=0.3)
        except arraycomm.GroupError as error:
            assert str(error)
        with contextlib.suppress(arraycomm.GroupError):
            part.close()  # rank 1 hears here what came of it
        while maps() != before:  # or the next one's memory might be taken for this one's
            os.sched_yield()
        group.barrier()
    say(group, f"alive, its neighbours {set(around[:count].tolist()) | set(around[2 * count:].tolist())}")


def lies(first: str, last: str, mark: int) -> int:
    """Where between two addresses those bytes do that a rank has put down, a page of one value."""
    return ctypes.string_at(int(first, 16), int(last, 16) - int(first, 16)).find(bytes([mark]) * 4096)


def change_hands(group: arraycomm.Group) -> None:
    """Two ranks: what this one puts down lies where it has read the other one's. The second of two pieces lies where that of
    the call before did."""
    before, other = maps(), 1 - group.rank
    for elements in (1 << 12, 1 << 18, 1 << 19):
        part, told = group.split(0), []
        assert part is not None
        ((first, last),) = (range.split("-") for range in maps() - before)
        for name in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"):
            places: list[tuple[int, int]] = []
            for turn in range(1, 4):
                marks = [64 * rank + 16 * turn + len(told) for rank in range(2)]
                blocks = 2 if name in ("all_to_all", "reduce_scatter") else 1
                x = np.full(blocks * elements, marks[part.rank], np.uint8)
                got = getattr(part, name)(x)
                wanted = np.repeat(marks, elements) if name.startswith("all_") and name != "all_reduce" else sum(marks)
                assert (got == wanted).all(), (name, elements)
                places.append((lies(first, last, marks[part.rank]), lies(first, last, marks[other])))
                group.barrier()
            swapped = 0 if blocks * elements > 1 << 19 else 1  # pieces of 512 KiB of all blocks
            told.append(all(now[0] == earlier[swapped] > 0 for now, earlier in zip(places[1:], places, strict=False)))
        part.close()
        while maps() != before:  # or the next one's memory might be taken for this one's
            os.sched_yield()
        say(group, f"{elements} {told}")


CASES = {"matrix": matrix, "under way": under_way, "change hands": change_hands, "differ": differ,
         "dies": lambda group: loses(group, dies), "closes": lambda group: loses(group, closes), "ends well": ends_well,
         "scribbles": scribbles}

if __name__ == "__main__":
    with arraycomm.init(timeout=60) as world:
        CASES[sys.argv[1]](world)

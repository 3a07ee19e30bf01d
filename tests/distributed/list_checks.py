"""Checks of the collectives with one array for each rank in a list."""

from __future__ import annotations

import numpy as np

import arraycomm.distributed as dist
from arraycomm.distributed import ReduceOp

from .checks import Library, check, same
from .collective_checks import folded, given


@check
def all_gather(lib: Library) -> None:
    for shape in ((), (5,), (2, 3)):
        for async_op in (False, True):
            outs = [lib.array(np.zeros(shape)) for _ in range(lib.size)]
            work = dist.all_gather(outs, lib.array(given(shape, "float64", lib.rank)), async_op=async_op)
            assert (work is not None) == async_op and (work is None or work.wait())
            for rank, out in enumerate(outs):
                same(out, given(shape, "float64", rank))
    outs = [lib.strided(np.zeros((2, 3))) for _ in range(lib.size)]
    dist.all_gather(outs, lib.strided(given((2, 3), "float64", lib.rank)))
    for rank, out in enumerate(outs):
        same(out, given((2, 3), "float64", rank))


@check
def all_gather_of_unlike_sizes(lib: Library) -> None:
    whole = lib.zeros(sum(range(lib.size + 1)))
    apart = [lib.zeros(rank + 1) for rank in range(lib.size)]
    slices = [whole[rank * (rank + 1) // 2 : (rank + 1) * (rank + 2) // 2] for rank in range(lib.size)]
    for outs in (apart, slices):
        dist.all_gather(outs, lib.array(np.full(lib.rank + 1, 7.0 + lib.rank)))
        for rank, out in enumerate(outs):
            same(out, np.full(rank + 1, 7.0 + rank))
    outs = [lib.zeros(3 if rank == 1 else 0) for rank in range(lib.size)]
    dist.all_gather(outs, lib.array([1.0, 2, 3]) if lib.rank == 1 else lib.zeros(0))
    same(outs[1], [1.0, 2, 3])
    slices[lib.rank][...] = lib.rank
    dist.all_gather(slices, slices[lib.rank])
    same(whole, np.repeat(np.arange(lib.size), np.arange(lib.size) + 1))


@check
def gather_and_scatter(lib: Library) -> None:
    for root in range(lib.size):
        for async_op in (False, True):
            outs = [lib.zeros(2, 3) for _ in range(lib.size)] if lib.rank == root else None
            work = dist.gather(lib.array(given((2, 3), "float64", lib.rank)), outs, dst=root, async_op=async_op)
            assert (work is not None) == async_op and (work is None or work.wait())
            for rank, out in enumerate(outs or ()):
                same(out, given((2, 3), "float64", rank))
            x = lib.strided(np.zeros((2, 3)))
            ins = [lib.strided(given((2, 3), "float64", rank)) for rank in range(lib.size)] if lib.rank == root else None
            work = dist.scatter(x, ins, src=root, async_op=async_op)
            assert (work is not None) == async_op and (work is None or work.wait())
            same(x, given((2, 3), "float64", lib.rank))
    x = lib.zeros(2)
    dist.scatter(x, [lib.array([1.0 * rank, 5]) for rank in range(lib.size)] if lib.rank == 0 else None)
    same(x, [lib.rank, 5])
    parts = lib.array(np.arange(2.0 * lib.size))
    mine = [parts[2 * rank : 2 * rank + 2] for rank in range(lib.size)]
    dist.scatter(mine[0] if lib.rank == 0 else x, mine if lib.rank == 0 else None)  # into a slice of what is scattered
    same(parts[:2] if lib.rank == 0 else x, [2 * lib.rank, 2 * lib.rank + 1])


@check
def dtypes_without_a_format(lib: Library) -> None:
    """bfloat16 and float8, which the buffer protocol does not know, in every form that joins or splits arrays."""
    if lib.name != "torch":
        return
    for dtype in ("bfloat16", "float8_e5m2"):
        mine = lib.array(np.full((2, 3), 1.0 + lib.rank), dtype)
        outs = [lib.array(np.zeros((2, 3)), dtype) for _ in range(lib.size)]
        dist.all_gather(outs, mine)
        dist.all_to_all(outs, [mine] * lib.size)
        for rank, out in enumerate(outs):
            same(out.float(), np.full((2, 3), 1.0 + rank))
        dist.reduce_scatter(outs[0], [mine] * lib.size, op=ReduceOp.MAX)
        dist.reduce(mine.T, 0, op=ReduceOp.MAX)
        dist.scatter(outs[1], [mine] * lib.size if lib.rank == 1 else None, src=1)
        dist.all_reduce(outs[2].T, op=ReduceOp.MIN)
        same(outs[0].float(), np.full((2, 3), 3.0))
        same(outs[1].float(), np.full((2, 3), 2.0))
        same(outs[2].float(), np.full((2, 3), 3.0))


@check
def reduce_scatter(lib: Library) -> None:
    ins = [lib.array(given((2, 2), "float64", lib.rank) + 10 * part) for part in range(lib.size)]
    out = lib.zeros(2, 2)
    dist.reduce_scatter(out, ins)
    same(out, folded("SUM", (2, 2), "float64", lib.size) + 10 * lib.rank * lib.size)
    uneven = [lib.array(given((part + 1,), "int64", lib.rank), "int64") for part in range(lib.size)]
    out = lib.zeros(lib.rank + 1, dtype="int64")
    work = dist.reduce_scatter(out, uneven, op=ReduceOp.MAX, async_op=True)
    assert work is not None and work.wait()
    same(out, folded("MAX", (lib.rank + 1,), "int64", lib.size))


@check
def all_to_all(lib: Library) -> None:
    me, size = lib.rank, lib.size
    for length in (lambda a, b: 2, lambda a, b: (a + 2 * b) % 4):  # elements from a to b
        ins = [lib.array(np.full(length(me, to), 10.0 * me + to)) for to in range(size)]
        outs = [lib.array(np.zeros(length(rank, me))) for rank in range(size)]
        dist.all_to_all(outs, ins)
        for rank, out in enumerate(outs):
            same(out, np.full(length(rank, me), 10.0 * rank + me))
    whole = lib.array(np.arange(float(size)) + 10 * me)
    ins = [whole[rank : rank + 1] for rank in range(size)]
    work = dist.all_to_all(ins, ins, async_op=True)  # in place
    assert work is not None and work.wait()
    same(whole, 10.0 * np.arange(size) + me)

"""Checks of the collectives on one array per rank, against NumPy."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

import arraycomm.distributed as dist
from arraycomm.distributed import ReduceOp
from tests.present import present

from .checks import Library, check, same, values
from .object_checks import refused

FOLDS = {"SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "BAND": np.bitwise_and,
         "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
SHAPES = ((), (0,), (5,), (2, 3))


def given(shape: tuple[int, ...], dtype: str, rank: int) -> NDArray[Any]:
    """What this rank has: small numbers, exact in every dtype."""
    flat = (np.arange(int(np.prod(shape))) + 2 * rank) % 5 + 1
    return flat.reshape(shape).astype(dtype if dtype != "bfloat16" else "float32")


def folded(op: str, shape: tuple[int, ...], dtype: str, size: int) -> NDArray[Any]:
    return reduce(FOLDS[op], [given(shape, dtype, rank) for rank in range(size)])


def pairs(lib: Library) -> list[tuple[str, str]]:
    """(reduction, dtype)"""
    numbers = ("float32", "float64", "int64", "uint8", "float16")
    found = [(op, dtype) for op in ("SUM", "PRODUCT", "MIN", "MAX") for dtype in numbers]
    found += [(op, dtype) for op in ("BAND", "BOR", "BXOR") for dtype in ("int32", "uint8", "bool")]
    found += [("SUM", "complex64"), ("SUM", "complex128"), ("SUM", "bool"), ("MAX", "bool")]
    return found + ([("SUM", "bfloat16"), ("MAX", "bfloat16")] if lib.name == "torch" else [])


def blank(lib: Library, shape: tuple[int, ...], dtype: str) -> Any:
    return lib.array(np.zeros(shape), dtype)


@check
def all_reduce(lib: Library) -> None:
    for op, dtype in pairs(lib):
        for shape in SHAPES:
            x = lib.array(given(shape, dtype, lib.rank), dtype) if 0 not in shape else lib.zeros(*shape, dtype=dtype)
            assert dist.all_reduce(x, op=getattr(ReduceOp, op)) is None
            same(x, folded(op, shape, dtype, lib.size))


@check
def all_reduce_in_other_ways(lib: Library) -> None:
    mean = lib.array([1.0, 2.0]) * (lib.rank + 1)
    dist.all_reduce(mean, op=ReduceOp.AVG)
    same(mean, [2.0, 4.0])
    scaled = lib.array([1.0, 2.0])
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    same(scaled, [0.5 * lib.size, lib.size])
    z = lib.array(np.array([1 + 2j, 3.0]) * (lib.rank + 1), "complex64") if lib.name != "torch" else None
    if z is not None:
        dist.all_reduce(z, op=ReduceOp.AVG)
        same(z, np.array([2 + 4j, 6], "complex64"))
    strided = lib.strided(given((3, 4), "float64", lib.rank))
    dist.all_reduce(strided)
    same(strided, folded("SUM", (3, 4), "float64", lib.size))
    work = dist.all_reduce(strided, op=ReduceOp.MAX, async_op=True)
    assert work is not None and work.wait() and work.is_completed()
    same(strided, folded("SUM", (3, 4), "float64", lib.size))
    positional = lib.array([lib.rank])
    dist.all_reduce(positional, ReduceOp(ReduceOp.MAX), dist.group.WORLD, False)
    same(positional, [lib.size - 1])


@check
def reduce_to_each(lib: Library) -> None:
    for root in range(lib.size):
        for x in (lib.array(given((2, 3), "float64", lib.rank)), lib.strided(given((2, 3), "float64", lib.rank))):
            dist.reduce(x, root, op=ReduceOp.MAX)
            same(x, folded("MAX", (2, 3), "float64", lib.size) if lib.rank == root else given((2, 3), "float64", lib.rank))
    work = dist.reduce(x, group_dst=0, async_op=True)
    assert work is not None and work.wait()


@check
def broadcast_from_each(lib: Library) -> None:
    for root in range(lib.size):
        for x in (lib.array(given((2, 3), "float64", lib.rank)), lib.strided(given((2, 3), "float64", lib.rank))):
            dist.broadcast(x, root)
            same(x, given((2, 3), "float64", root))
        flags = lib.array(given((4,), "bool", lib.rank) if lib.rank == root else np.zeros(4), "bool")
        work = dist.broadcast(flags, group_src=root, async_op=True)
        assert work is not None and work.wait()
        same(flags, np.ones(4, bool))


@check
def all_gather_single(lib: Library) -> None:
    expected = np.stack([given((2, 3), "float32", rank) for rank in range(lib.size)])
    mine = lib.array(given((2, 3), "float32", lib.rank), "float32")
    for shape in ((2 * lib.size, 3), (lib.size, 2, 3), (6 * lib.size,)):
        for async_op in (False, True):
            out = blank(lib, shape, "float32")
            work = dist.all_gather_single(out, mine, async_op=async_op)
            assert (work is not None) == async_op and (work is None or work.wait())
            same(out, expected.reshape(shape))
    out = lib.strided(np.zeros((2 * lib.size, 3)), "float32")
    dist.all_gather_single(out, lib.strided(given((2, 3), "float32", lib.rank), "float32"))
    same(out, expected.reshape(2 * lib.size, 3))
    scalars = blank(lib, (lib.size,), "float64")
    dist.all_gather_single(scalars, lib.array(float(lib.rank)))
    same(scalars, np.arange(lib.size))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dist.all_gather_into_tensor(out, mine)
    assert [warning.category for warning in seen] == [FutureWarning] and seen[0].filename == __file__
    same(out, expected.reshape(2 * lib.size, 3))


@check
def reduce_scatter_single(lib: Library) -> None:
    whole = folded("SUM", (2 * lib.size, 3), "float64", lib.size)
    mine = given((2 * lib.size, 3), "float64", lib.rank)
    for shape in ((2 * lib.size, 3), (lib.size, 2, 3)):
        for async_op in (False, True):
            out = blank(lib, (2, 3), "float64")
            work = dist.reduce_scatter_single(out, lib.array(mine.reshape(shape)), async_op=async_op)
            assert (work is not None) == async_op and (work is None or work.wait())
            same(out, whole[2 * lib.rank : 2 * lib.rank + 2])
    out = lib.strided(np.zeros((2, 3)))
    dist.reduce_scatter_single(out, lib.strided(mine), op=ReduceOp.PRODUCT)
    same(out, folded("PRODUCT", (2 * lib.size, 3), "float64", lib.size)[2 * lib.rank : 2 * lib.rank + 2])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dist.reduce_scatter_tensor(out, lib.array(mine))
    assert [warning.category for warning in seen] == [FutureWarning]
    same(out, whole[2 * lib.rank : 2 * lib.rank + 2])


@check
def all_to_all_single(lib: Library) -> None:
    me, size = lib.rank, lib.size
    out = blank(lib, (2 * size,), "int64")
    dist.all_to_all_single(out, lib.array(np.arange(2 * size) + 100 * me, "int64"))
    same(out, np.concatenate([np.arange(2 * me, 2 * me + 2) + 100 * rank for rank in range(size)]))
    sends = [(me + to) % 3 for to in range(size)]  # rows, of two elements, from me to each
    receives = [(me + rank) % 3 for rank in range(size)]
    for async_op in (False, True):
        out = lib.strided(np.zeros((sum(receives), 2)))
        rows = np.repeat(np.arange(size), sends)[:, None] + np.array([[10.0 * me, 0]])
        work = dist.all_to_all_single(out, lib.array(rows), receives, sends, async_op=async_op)
        assert (work is not None) == async_op and (work is None or work.wait())
        same(out, np.repeat([[10.0 * rank + me, me] for rank in range(size)], receives, axis=0))


@check
def in_groups(lib: Library) -> None:
    """Roots are ranks of the world, or of the group; who is outside gets None and a warning."""
    group = dist.new_group([2, 1])
    inside = lib.rank in (1, 2)
    x = lib.array([float(lib.rank)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call: Callable[[], object]
        for call in (lambda: dist.all_reduce(x, group=group), lambda: dist.broadcast(x, 2, group=group),
                     lambda: dist.barrier(group=group), lambda: dist.all_gather([x, x], x, group=group) if not inside else None,
                     lambda: dist.all_gather_object([0, 0], 1, group=group), lambda: dist.reduce(x, group_dst=1, group=group)):
            assert call() is None
    texts = {str(warning.message) for warning in seen}
    assert not inside or not seen
    assert inside or {warning.category for warning in seen} == {UserWarning} and all(w.filename == __file__ for w in seen), seen
    assert inside or "Running all_reduce on global rank 0 which does not belong to the given group." in texts
    same(x, [[0.0], [3.0], [6.0]][lib.rank])


@check
def coalesced(lib: Library) -> None:
    xs = [lib.array(given(shape, "float32", lib.rank), "float32") for shape in ((2, 3), (4,), (30000,), ())]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dist.all_reduce_coalesced(xs, op=ReduceOp.MAX)
        outs = [[lib.array(np.zeros(s), "float32") for s in ((2, 3), (4,))] for _ in range(lib.size)]
        written = dist.all_gather_coalesced(outs, xs[:2], async_op=True).wait()
        assert [id(x) for x in written] == [id(x) for row in outs for x in row]
    assert [warning.category for warning in seen] == [FutureWarning] * 2
    for x in xs:
        same(x, folded("MAX", tuple(x.shape), "float32", lib.size))
    for row in outs:
        same(row[0], folded("MAX", (2, 3), "float32", lib.size))
        same(row[1], folded("MAX", (4,), "float32", lib.size))


@check
def coalesced_with_complex_ones(lib: Library) -> None:
    """Complex arrays beside those of their parts; strided ones too, and by a future."""
    for dtype, part in (("complex64", "float32"), ("complex128", "float64")):
        rows = np.arange(6.0).reshape(2, 3) + 1j * lib.rank
        xs = [lib.array(np.arange(4) + lib.rank, part), lib.strided(rows, dtype), lib.array(2j, dtype), lib.array([1.0], part)]
        outs = [[lib.array(np.zeros(np.shape(values(x))), dtype if 0 < i < 3 else part) for i, x in enumerate(xs)]
                for _ in range(lib.size)]
        dist.all_gather_coalesced(outs, xs)
        for rank, row in enumerate(outs):
            for x, expected in zip(row, (np.arange(4) + rank, rows.real + 1j * rank, 2j, [1.0]), strict=True):
                same(x, expected)
        written = dist.all_reduce_coalesced(xs, op=ReduceOp.SUM, async_op=True).wait()
        for index, x in enumerate(written):
            assert x is xs[index] or lib.name == "torch"
            same(xs[index], sum(values(row[index]) for row in outs))
        for wrong in (ReduceOp.MAX, ReduceOp.PRODUCT):
            refused(ValueError, "all_reduce does not support", partial(dist.all_reduce_coalesced, xs, op=wrong))
        refused(ValueError, "different dtypes", partial(dist.all_reduce_coalesced, [xs[1], lib.array([1], "int32")]))
        swapped = [lib.array(rows.real, part), xs[1]]
        refused(ValueError, "different dtypes", partial(dist.all_gather_coalesced, [[xs[1], xs[1]]] * lib.size, swapped))


@check
def sparse(lib: Library) -> None:
    """torch's COO tensors by all_reduce, as gloo takes them, with a group, a future and a manager too."""
    if lib.name != "torch":
        return
    torch = importlib.import_module("torch")
    dense, world = torch.zeros(lib.size, 2), present(dist.group.WORLD)
    dense[lib.rank] = lib.rank + 1.0
    total = torch.arange(1.0, lib.size + 1).reshape(-1, 1) * torch.ones(2)
    for call in (dist.all_reduce, partial(dist.all_reduce, group=world),
                 lambda x: present(dist.all_reduce(x, async_op=True)).wait(),
                 lambda x: present(dist.all_reduce(x, async_op=True)).get_future().wait(), lambda x: world.allreduce([x]).wait()):
        x = torch.sparse_coo_tensor([[lib.rank, lib.rank]], dense[[lib.rank] * 2] / 2, (lib.size, 2))  # one place twice
        call(x)
        assert x.is_coalesced() and torch.equal(x.to_dense(), total), x
    with dist._coalescing_manager():
        held, x = lib.array([1.0]), dense.to_sparse()
        dist.all_reduce(held)
        dist.all_reduce(x, op=ReduceOp.AVG)
        same(held, [lib.size])
    same(x.to_dense(), total / lib.size)
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (4,))
    dist.all_reduce(empty)
    assert empty._nnz() == 0
    refused(RuntimeError, "SUM or AVG", partial(dist.all_reduce, x, op=ReduceOp.MAX))
    refused(TypeError, "Expected parameter `op`", lambda: dist.all_reduce(x, op="sum"))  # type: ignore[arg-type]
    refused(TypeError, "to_dense", partial(dist.all_reduce, torch.eye(2).to_sparse_csr()))
    refused(TypeError, "one at a time", partial(world.allreduce, [dense, x]))


@check
def held_back(lib: Library) -> None:
    """Inside a coalescing manager nothing happens before its end, or before an operation of another kind."""
    for async_ops in (False, True):
        xs = [lib.array([1.0 + lib.rank]), lib.strided(np.ones((2, 2))), lib.array([2]), lib.array([3.0])]
        out = blank(lib, (lib.size,), "float64")
        with dist._coalescing_manager(async_ops=async_ops) as manager:
            for x in xs[:3]:
                assert dist.all_reduce(x) is None
            same(xs[0], [1.0 + lib.rank])
            dist.all_reduce(xs[3], op=ReduceOp.MAX)
            dist.all_gather_single(out, lib.array([float(lib.rank)]))
            dist.reduce_scatter_single(xs[3], lib.array([1.0] * lib.size))
        assert len(manager.works) == async_ops
        manager.wait()
        for x, expected in zip([*xs, out], ([6.0], np.full((2, 2), 3.0), [6], [3.0], [0.0, 1, 2]), strict=True):
            same(x, expected)
    with dist._coalescing_manager():
        dist.all_reduce(xs[0])
        dist.broadcast(xs[0], 0)
        same(xs[0], [18.0])
    plain = lib.array([1.0])

    def broken() -> None:
        with dist._coalescing_manager():
            dist.all_reduce(plain)
            raise KeyError("on purpose")

    refused(KeyError, "on purpose", broken)
    same(plain, [1.0])
    dist.all_reduce(plain)
    same(plain, [3.0])
    with dist._coalescing_manager():
        dist.all_reduce(plain)
    same(plain, [9.0])


@check
def several_arrays_of_one_process(lib: Library) -> None:
    def lists() -> list[Any]:
        return [lib.array([1.0 + 2 * lib.rank + i, 10.0]) for i in range(2)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        xs = lists()
        dist.broadcast_multigpu(xs, 2, src_tensor=1)
        for x in xs:
            same(x, [6.0, 10.0])
        outs = [[lib.zeros(2) for _ in range(6)] for _ in range(2)]
        dist.all_gather_multigpu(outs, lists())
        for row in outs:
            assert [float(values(x)[0]) for x in row] == [1.0, 2, 3, 4, 5, 6]
        if lib.name == "cuda":
            refused(RuntimeError, "reduces arrays in host memory only", lambda: dist.all_reduce_multigpu(lists()))
            return
        xs = lists()
        dist.all_reduce_multigpu(xs)
        for x in xs:
            same(x, [21.0, 60.0])
        xs = lists()
        dist.reduce_multigpu(xs, 1, op=ReduceOp.MAX, dst_tensor=1)
        same(xs[1], [6.0, 10.0] if lib.rank == 1 else [2.0 + 2 * lib.rank, 10.0])
        same(xs[0], [1.0 + 2 * lib.rank, 10.0])
        places = [lib.zeros(1), lib.zeros(1)]
        dist.reduce_scatter_multigpu(places, [[lib.array([float(i)]) for i in range(6)] for _ in range(2)])
        assert [float(x[0]) for x in places] == [12.0 * lib.rank, 12.0 * lib.rank + 6]

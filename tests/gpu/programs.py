"""What ranks do with arrays on GPUs, and what must come of it."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import reduce
from typing import Any

import numpy as np

import arraycomm
import arraycomm.distributed as dist
from tests.present import present

from . import frameworks, jit

DTYPES = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64", "complex64")
OPS = ("sum", "product", "min", "max", "avg")
checked = 0  # results in this process


def close(got: np.ndarray, want: np.ndarray, what: str) -> None:
    global checked
    checked += 1
    tolerance = 1e-2 if got.dtype == np.float16 else 1e-5
    assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{what}: {got.dtype} {got.shape}"
    wrong = np.flatnonzero(~np.isclose(got, want, rtol=tolerance, atol=tolerance))
    assert not len(wrong), (f"{what}: {len(wrong)} of {got.size} wrong, the first and last at {wrong[0]} and {wrong[-1]}, "
                            f"{got.flat[wrong[0]]} instead of {want.flat[wrong[0]]}")


def reduced(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    stacked = np.stack(arrays)
    if op == "avg":
        mean = stacked.sum(0) / len(arrays)
        return np.asarray(np.trunc(mean) if stacked.dtype.kind in "iu" else mean, stacked.dtype)
    functions: dict[str, Callable[..., Any]] = {"sum": np.sum, "product": np.prod, "min": np.min, "max": np.max}
    return np.asarray(functions[op](stacked, axis=0).astype(stacked.dtype))


def everything(rank: int, counts: Sequence[int], framework: str) -> None:
    """Of one framework's arrays, or of all that are here ("")."""
    for name in frameworks.use(rank, framework):
        with arraycomm.init(backend="nccl", timeout=60) as group:
            for dtype in DTYPES:
                operations(group, name, dtype, counts)
            streams(group, name, 4 * counts[-1])
            in_rank_order(group, name, counts[0])
            gradients(group, name, counts)
            with present(group.split(0)) as part:
                operations(part, name, "float32", counts[:2])
            group.barrier()
            if rank == 0:
                print(f"| {name} | {group.size} | {checked} |", flush=True)


def operations(group: arraycomm.Group, name: str, dtype: str, counts: Sequence[int]) -> None:
    me, size = group.rank, group.size
    for count in counts:
        inputs = [(np.arange(count * size) % 5 + rank).astype(dtype).reshape(size, count) for rank in range(size)]
        x, label = frameworks.make(name, inputs[me]), f"{name} {dtype} {count}"
        for op in OPS if dtype != "complex64" else ("sum", "avg"):
            close(frameworks.back(group.all_reduce(x, op)), reduced(op, inputs), f"all_reduce {op} {label}")
        close(frameworks.back(group.reduce_scatter(x)), reduced("sum", inputs)[me : me + 1], f"reduce_scatter {label}")
        close(frameworks.back(group.all_gather(x)), np.concatenate(inputs), f"all_gather {label}")
        close(frameworks.back(group.broadcast(x, size - 1)), inputs[-1], f"broadcast {label}")
        close(frameworks.back(group.all_to_all(x)), np.stack([row[me] for row in inputs]), f"all_to_all {label}")
        gathered = group.gather(x, root=0)
        if me == 0:
            close(frameworks.back(gathered), np.concatenate(inputs), f"gather {label}")
        close(frameworks.back(group.scatter(x, 0, like=x[:1])), inputs[0][me : me + 1], f"scatter {label}")
        with group.batch():
            group.isend(x, (me + 1) % size)
            work = group.irecv((me - 1) % size, like=x)
        close(frameworks.back(work.result().array), inputs[me - 1], f"batch {label}")


def in_rank_order(group: arraycomm.Group, name: str, count: int) -> None:
    """What NCCL does not have."""
    me, inputs = group.rank, [np.arange(count, dtype=np.float32) * (rank + 1) for rank in range(group.size)]
    x = frameworks.make(name, inputs[me])

    def less(left: Any, right: Any) -> Any:
        return frameworks.make(name, frameworks.back(left) * 2 - frameworks.back(right))

    upto: list[np.ndarray] = list(itertools.accumulate(inputs, lambda left, right: np.asarray(left * 2 - right)))
    close(frameworks.back(group.scan(x)), reduce(np.add, inputs[: me + 1]), f"scan {name}")
    close(frameworks.back(group.exscan(x)), sum(inputs[:me], np.zeros(count, np.float32)), f"exscan {name}")
    close(frameworks.back(group.all_reduce(x, less)), upto[-1], f"all_reduce by a function {name}")
    close(frameworks.back(group.exscan(x, less)), upto[me - 1] if me else np.zeros(count, np.float32), f"exscan by one {name}")
    greatest, ranks = group.all_reduce(x, "maxloc")
    close(frameworks.back(greatest), inputs[-1], f"maxloc {name}")
    close(frameworks.back(ranks), np.where(inputs[0] == 0, 0, group.size - 1), f"ranks of maxloc {name}")


def streams(group: arraycomm.Group, name: str, count: int) -> None:
    """Work before and after, and asynchronous operations in between: nothing is read too early."""
    x = frameworks.make(name, np.ones(count, np.float32))
    for turn in range(20):
        y = group.all_reduce(x + turn, async_op=True).result() if turn % 2 else group.all_reduce(x + turn)
        close(frameworks.back(y * 2), np.full(count, 2.0 * group.size * (1 + turn), np.float32), f"{name} turn {turn}")


def gradients(group: arraycomm.Group, name: str, counts: Sequence[int]) -> None:
    """Of a GradientReducer, which come last first."""
    like = [frameworks.make(name, np.ones(count, np.float32)) for count in counts]
    reducer = arraycomm.GradientReducer(group, like)
    for turn in range(3):
        for index in reversed(range(len(like))):
            reducer.push(index, like[index] * (group.rank + index + turn))
        for index, mean in enumerate(reducer.finish()):
            want = np.full(counts[index], (group.size - 1) / 2 + index + turn, np.float32)
            close(frameworks.back(mean), want, f"{name} gradient {index} of turn {turn}")


def symmetric(rank: int, counts: Sequence[int], framework: str) -> None:
    """Arrays of group.empty(), in place and between ordinary ones; the memory goes and comes again."""
    os.environ["ARRAYCOMM_NCCL_SYMMETRIC"] = "1"
    for name in frameworks.use(rank, framework):
        if name == "jax":  # whose arrays cannot be written
            continue
        with arraycomm.init(backend="nccl", timeout=60) as group:
            want = sum(range(1, group.size + 1))
            for turn in range(3):
                for count in counts:
                    plain = frameworks.make(name, np.full(count, rank + 1, np.float32))
                    x = group.empty(count, "float32", like=plain)
                    assert type(x) is type(plain)
                    x[...] = plain
                    results = [group.all_reduce(x), group.all_reduce(plain), group.all_reduce(x, out=x), x]
                    for result in results:
                        close(frameworks.back(result), np.full(count, want, np.float32), f"{name} {count} turn {turn}")
            group.barrier()
            if rank == 0:
                print(f"| {name} | {group.size} | {checked} |", flush=True)


def compiled(rank: int, counts: Sequence[int], framework: str) -> None:
    """Programs of JAX's, over NCCL and staged. Over the stand-ins: on the CPU, where they are tried as programs only."""
    (name,) = frameworks.use(rank, framework)
    import jax

    import arraycomm.frameworks.jax as comm

    for backend in ("nccl", "socket"):
        with arraycomm.init(backend=backend, timeout=60, name=f"compiled over {backend}") as group:
            program = comm.jit(lambda x, group=group: _program(comm, x, group))
            want = 2 * sum(range(1, group.size + 1))
            for count in counts:
                x = np.full(count, rank + 1, np.float32)
                for _ in range(3):
                    total, gathered = program(jax.numpy.asarray(x) if name == frameworks.STANDIN else frameworks.make(name, x))
                    close(np.asarray(total), np.full(count, want, np.float32), f"all_reduce in a program over {backend}")
                    close(np.asarray(gathered), np.full(count, (want + 1) * group.size, np.float32), "what follows it")
            if name != frameworks.STANDIN or backend == "nccl":  # one after the other is the same there
                jit.check(group, close)
            group.barrier()
            if rank == 0:
                print(f"| {name}, compiled, over {backend} | {group.size} | {checked} |", flush=True)


def _program(comm: Any, x: Any, group: arraycomm.Group) -> tuple[Any, Any]:
    total = comm.all_reduce(x * 2, group=group)
    return total, comm.all_gather(total + 1, form="stack", group=group).sum(0)


def facade(rank: int, framework: str) -> None:
    """A program for torch.distributed, with the one import changed."""
    usable = frameworks.use(rank, framework)
    dist.init_process_group("nccl", timeout=timedelta(seconds=60))
    for name in usable:
        if name != "jax":  # torch's functions write into what they are given
            in_place(name)
    if importlib.util.find_spec("msgpack"):
        objects: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": other} for other in range(dist.get_world_size())]
    dist.barrier()
    dist.destroy_process_group()


def in_place(name: str) -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    ranks = np.arange(size, dtype=np.float32)

    def full(value: float, count: int = 3) -> Any:
        return frameworks.make(name, np.full(count, value, np.float32))

    x = full(me)
    dist.all_reduce(x)
    close(frameworks.back(x), np.full(3, ranks.sum(), np.float32), f"{name} all_reduce")
    assert present(dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)).wait()
    close(frameworks.back(x), np.full(3, ranks.sum(), np.float32), f"{name} all_reduce, asynchronous")
    x = full(me)
    dist.broadcast(x, size - 1)
    close(frameworks.back(x), np.full(3, size - 1, np.float32), f"{name} broadcast")
    gathered, scattered, swapped = full(-1, 3 * size), full(-1), full(-1, size)
    dist.all_gather_into_tensor(gathered, full(me))
    close(frameworks.back(gathered), np.repeat(ranks, 3), f"{name} all_gather_into_tensor")
    dist.reduce_scatter_tensor(scattered, gathered)
    close(frameworks.back(scattered), np.full(3, me * size, np.float32), f"{name} reduce_scatter_tensor")
    dist.all_to_all_single(swapped, full(me, size))
    close(frameworks.back(swapped), ranks, f"{name} all_to_all_single")
    x, y = full(me), full(-1)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (me + 1) % size), dist.P2POp(dist.irecv, y, (me - 1) % size)]):
        work.wait()
    close(frameworks.back(y), np.full(3, (me - 1) % size, np.float32), f"{name} batch_isend_irecv")
    part = dist.new_group([size - 1])
    if me == size - 1:
        dist.all_reduce(x, group=part)
        close(frameworks.back(x), np.full(3, me, np.float32), f"{name} all_reduce of one rank")

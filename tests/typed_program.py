"""What type checkers make of a user's program: tests/test_types.py. It runs, too."""

import array
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import arraycomm

Vector = npt.NDArray[np.float64]


def work(group: arraycomm.Group, scale: float) -> float:
    x: Vector = np.full(2, scale)
    assert_type(group.all_reduce(x), Vector)
    assert_type(group.all_reduce(x, op="max", out=x), Vector)
    assert_type(group.all_reduce(x, lambda left, right: left + right), Vector)
    assert_type(group.all_reduce(x, "maxloc"), tuple[Any, Any])
    assert_type(group.all_reduce(x, async_op=True), arraycomm.Work[Vector])
    assert_type(group.all_reduce(x, async_op=True).result(), Vector)
    assert_type(group.all_reduce(x, async_op=scale > 0), Vector | arraycomm.Work[Vector])
    assert_type(group.all_reduce(array.array("d", [1.0])), "array.array[float]")
    assert_type(group.reduce(x, root=0), Vector | None)
    assert_type(group.reduce_scatter(np.ones((group.size, 2))), np.ndarray[tuple[int, int], np.dtype[np.float64]])
    assert_type(group.scan(x), Vector)
    assert_type(group.exscan(x, async_op=True).result(), Vector)
    assert_type(group.broadcast(x, root=0), Vector)
    assert_type(group.broadcast(x, root=0, async_op=True).result(), Vector)
    assert_type(group.all_gather(x, form="stack"), Vector)
    assert_type(group.all_gather(x, form="list"), list[Vector])
    assert_type(group.all_gather(x, async_op=True).result(), Vector)
    assert_type(group.gather(x), Vector | None)
    assert_type(group.gather(x, async_op=True).result(), Vector | None)
    assert_type(group.gather(x, form="list", async_op=True).result(), list[Vector] | None)
    assert_type(group.scatter(x if group.rank == 0 else None, like=x[:1]), Vector)
    assert_type(group.scatter(x, like=x[:1], async_op=True).result(), Vector)
    assert_type(group.all_to_all(x), Vector)
    assert_type(group.all_to_all(x, async_op=True).result(), Vector)
    assert_type(group.reduce_scatter(x, async_op=True).result(), Vector)
    assert_type(group.barrier(async_op=True), arraycomm.Work[None])
    messages(group, x)
    objects(group)
    assert_type(group.empty(2, like=x), Vector)
    assert_type(group.split(color=0), arraycomm.Group | None)
    assert_type(group.rank, int)
    return float(group.all_reduce(x)[0])


def messages(group: arraycomm.Group, x: Vector) -> None:
    other = 1 - group.rank
    assert_type(group.sendrecv(x, dest=other), arraycomm.Received[Vector])
    assert_type(group.sendrecv(1 * x, dest=other, source=other, out=x).array, Vector)
    going = group.isend(x, dest=other)
    assert_type(going.result(), None)
    assert_type(group.irecv(source=other, like=x).result().array, Vector)
    group.send(x, dest=other)
    received = group.recv(source=other, like=x)
    assert_type(received.array, Vector)
    assert_type(received.source, int)
    group.send(x, dest=other)
    assert_type(group.recv(out=array.array("d", x)).array, "array.array[float]")
    works = [group.all_reduce(x, async_op=True), group.scan(x, async_op=True)]
    assert_type(arraycomm.wait_all(works), list[Vector])
    assert_type(arraycomm.GradientReducer(group, [x]).reduce([x]), list[Vector])
    assert_type(group.cart([2]).halo_exchange(np.ones(6)), np.ndarray[tuple[int], np.dtype[np.float64]])


def objects(group: arraycomm.Group) -> None:
    settings = {"rate": 0.5} if group.rank == 0 else None
    assert_type(group.broadcast_object(settings), dict[str, float])
    assert_type(group.all_gather_object(group.rank), list[int])
    assert_type(group.gather_object("text"), list[str] | None)
    assert_type(group.scatter_objects([1, 2] if group.rank == 0 else None), int)
    assert_type(group.irecv_object(tag=1).done(), bool)
    group.send_object((1, 2), dest=1 - group.rank, tag=1)


if __name__ == "__main__":
    assert_type(arraycomm.run(work, 2, 2.0), list[float])
    print(arraycomm.run(work, 2, 2.0))

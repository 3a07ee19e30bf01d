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
    assert_type(group.all_reduce(x, async_op=True), arraycomm.Work)
    assert_type(group.all_reduce(array.array("d", [1.0])), "array.array[float]")
    assert_type(group.reduce(x, root=0), Vector | None)
    assert_type(group.reduce_scatter(np.ones((group.size, 2))), np.ndarray[tuple[int, int], np.dtype[np.float64]])
    assert_type(group.scan(x), Vector)
    assert_type(group.exscan(x, async_op=True), arraycomm.Work)
    assert_type(group.broadcast(x, root=0), Vector)
    assert_type(group.all_gather(x, form="stack"), Vector)
    assert_type(group.gather(x), Vector | None)
    assert_type(group.scatter(x if group.rank == 0 else None, like=x[:1]), Vector)
    assert_type(group.all_to_all(x), Vector)
    assert_type(group.empty(2, like=x), Vector)
    assert_type(group.split(color=0), arraycomm.Group | None)
    assert_type(group.rank, int)
    return float(group.all_reduce(x)[0])


if __name__ == "__main__":
    assert_type(arraycomm.run(work, 2, 2.0), list[float])
    print(arraycomm.run(work, 2, 2.0))

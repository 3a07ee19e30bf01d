"""Several Buffers as one run, and reductions within one process."""

from __future__ import annotations

import numpy as np
import pytest

from arraycomm.core.arrays.dlpack import resolve, resolve_out
from arraycomm.core.arrays.joined import joined, target, update
from arraycomm.core.group.local import reduce_into


def test_slices_of_one_array_need_no_copy() -> None:
    whole = np.arange(10.0)
    parts = [whole[:3], whole[3:3], whole[3:10]]
    run = joined([resolve(part) for part in parts])
    assert run.address == whole.ctypes.data and run.shape == (10,)
    out, spread = target([resolve_out(part) for part in parts])
    assert out.address == whole.ctypes.data and spread is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_others_are_copied_and_written_back(order: tuple[int, int]) -> None:
    whole = np.arange(6, dtype="int16")
    parts = [whole[:2].reshape(2, 1), whole[3:]]  # with a gap, or backwards
    buffers = [resolve_out(parts[index]) for index in order]
    expected = np.concatenate([parts[index].ravel() for index in order])
    assert np.frombuffer(memoryview(joined(buffers)), "int16").tolist() == expected.tolist()
    out, spread = update(buffers)
    values = np.frombuffer(memoryview(out), "int16")
    assert values.tolist() == expected.tolist() and spread is not None
    values += 10
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]
    spread()
    assert whole.tolist() == [10, 11, 2, 13, 14, 15]


@pytest.mark.parametrize(("op", "expected"), [("sum", [6, 9]), ("max", [4, 5]), ("avg", [2, 3]), ("band", [0, 1])])
def test_local_reductions(op: str, expected: list[int]) -> None:
    rows = np.array([[1, 1], [1, 3], [4, 5]])
    reduce_into(resolve_out(rows[0]), [resolve(row) for row in rows], op)
    assert rows.tolist() == [expected, [1, 3], [4, 5]]


def test_local_reductions_refuse_what_differs() -> None:
    out = resolve_out(np.zeros(2))
    for wrong in (np.zeros(3), np.zeros(2, "float32")):
        with pytest.raises(ValueError, match="must agree"):
            reduce_into(out, [resolve(wrong)])
    with pytest.raises(TypeError, match="integers and bool only"):
        reduce_into(out, [resolve(np.zeros(2))], "band")

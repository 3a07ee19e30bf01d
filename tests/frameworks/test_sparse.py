"""frameworks/sparse.py: as the dense sum, in every form and library, with the same bits on all ranks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import arraycomm
from arraycomm.frameworks.sparse import sparse_all_reduce

SIZE = 3
DTYPES = [*map(np.dtype, ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                          "float64", "complex64", "complex128")), np.dtype(ml_dtypes.bfloat16)]


def _given(rank: int, lengths: tuple[int, ...], rest: tuple[int, ...], dtype: Any, most: int) -> tuple[Any, Any]:
    """This rank's entries; small whole numbers, whose sums every dtype holds exactly."""
    rng = np.random.default_rng([rank, most, len(lengths)])
    count = int(rng.integers(0, most + 1)) if rank != 1 else 0  # one rank has nothing
    indices = np.stack([rng.integers(0, length, count) for length in lengths])
    values = rng.integers(0 if dtype.kind == "u" else -4, 5, (count, *rest)).astype(dtype)
    return indices, values * dtype.type(1 - 2j) if dtype.kind == "c" else values


def _dense(everybody: list[tuple[Any, Any]], lengths: tuple[int, ...], rest: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    total, named = np.zeros((*lengths, *rest), dtype), np.zeros(lengths, bool)
    for indices, values in everybody:
        for entry, place in enumerate(zip(*indices.tolist(), strict=True)):
            total[place] += values[entry]
            named[place] = True
    return total, named


def _compare(group: arraycomm.Group) -> None:
    for dtype in DTYPES:
        for lengths, rest, most in (((20,), (), 30), ((6, 5), (2,), 12), ((4,), (3, 0), 3), ((3, 1, 4), (), 0)):
            everybody = [_given(rank, lengths, rest, dtype, most) for rank in range(SIZE)]
            total, named = _dense(everybody, lengths, rest, dtype)
            indices, values = everybody[group.rank]
            found, sums = sparse_all_reduce(group, indices, values, lengths)
            assert found.dtype == np.int64 and sums.dtype == dtype, dtype
            assert (found == np.stack(np.nonzero(named))).all() and (sums == total[named]).all(), (dtype, lengths)
            _, means = sparse_all_reduce(group, indices, values, lengths, op="avg")
            dense = group.all_reduce(_dense([everybody[group.rank]], lengths, rest, dtype)[0], op="avg")
            assert (means == dense[named]).all(), (dtype, lengths)


def _plain(group: arraycomm.Group) -> None:
    """An int as shape; other index dtypes; the order of the additions, which shows in float32."""
    here = np.array([[3, 1, 3], [], [1, 0, 1]][group.rank], np.uint8)
    values = np.array([[1e8, 1, -1e8], [], [2.5, 4, 2.5]][group.rank], np.float32)
    found, sums = sparse_all_reduce(group, here, values, 256)
    assert found.dtype == np.uint8 and found.tolist() == [0, 1, 3] and sums.tolist() == [4, 6, 0]
    rng = np.random.default_rng(group.rank)
    indices, values = rng.integers(0, 500, 2000), rng.normal(size=(2000, 3)).astype(np.float32) * 10.0 ** rng.integers(-9, 9)
    found, sums = sparse_all_reduce(group, indices, values.astype(np.float32), 500)
    assert (group.all_gather(found, form="stack") == found).all()
    assert (group.all_gather(sums.view(np.uint32), form="stack") == sums.view(np.uint32)).all()


def _refused(group: arraycomm.Group) -> None:
    i, x = np.zeros(2, np.int64), np.zeros(2)
    for call, kind, text in (
            (lambda: sparse_all_reduce(group, x, x, 4), TypeError, "indices are integers, got float64"),
            (lambda: sparse_all_reduce(group, i, x > 0, 4), TypeError, "no sum of bool"),
            (lambda: sparse_all_reduce(group, i, x, 4, op="max"), ValueError, "sum or avg, got 'max'"),
            (lambda: sparse_all_reduce(group, i, x[:1], 4), ValueError, "do not belong to shape"),
            (lambda: sparse_all_reduce(group, i, x, (4, 4)), ValueError, "indices are \\(2, n\\)"),
            (lambda: sparse_all_reduce(group, i[None], x, ()), ValueError, "at least one dimension"),
            (lambda: sparse_all_reduce(group, i.astype(np.int8), x, 129), ValueError, "more than int8 indices"),
            (lambda: sparse_all_reduce(group, i, x, -1), ValueError, "negative")):
        with pytest.raises(kind, match=text):
            call()
    for wrong in (4, -1):
        kind, text = ((ValueError, f"index {wrong} at place 1 is out of range for dimension 0 of length 4") if group.rank == 1
                      else (arraycomm.CollectiveMismatch, "rank 1 gave an index that is out of range"))
        with pytest.raises(kind, match=text):
            sparse_all_reduce(group, np.array([0, wrong if group.rank == 1 else 3]), x, 4)
    for differing in ({"shape": 5}, {"op": "avg"}, {"values": x.astype(np.float32)}, {"values": x[:, None]}):
        given: dict[str, Any] = {"indices": i, "values": x, "shape": 4, **(differing if group.rank == 2 else {})}
        with pytest.raises(arraycomm.CollectiveMismatch, match="rank 2 gave another shape, dtype or op") as caught:
            sparse_all_reduce(group, **given)
        assert caught.value.ranks == (2,)


def _check(group: arraycomm.Group) -> None:
    for check in (_compare, _plain, _refused):
        check(group)
    group.barrier()


def test_sparse() -> None:
    arraycomm.run(_check, SIZE, timeout=30.0)


def test_other_libraries() -> None:
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    with arraycomm.init() as group:
        found, sums = sparse_all_reduce(group, torch.tensor([[1, 0, 1]]), torch.ones(3, 2, dtype=torch.bfloat16), (2,))
        assert found.tolist() == [[0, 1]] and torch.equal(sums, torch.tensor([[1, 1], [2, 2]], dtype=torch.bfloat16))
        found, sums = sparse_all_reduce(group, jnp.array([1, 0, 1], jnp.int32), jnp.ones(3), 2)
    assert isinstance(found, type(jnp.ones(1))) and found.dtype == "int32" and sums.tolist() == [1, 2]

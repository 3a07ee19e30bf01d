"""minloc and maxloc. The ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arraycomm

DTYPES = ("float32", "float64", "float16", "int8", "int64", "uint32", "bool")


def ranks(work: Callable[[arraycomm.Group], Any], size: int = 3) -> list[Any]:
    return arraycomm.run(work, size, timeout=60.0)


def _x(rank: int, dtype: str) -> np.ndarray:
    x = np.random.default_rng(rank).integers(0, 4, (700, 3))
    return (x > 1) if dtype == "bool" else x.astype(dtype)


def _expected(xs: list[np.ndarray], op: str, places: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    extremes = (np.minimum if op == "minloc" else np.maximum).reduce(xs)
    has = [(x == extremes) | ((x != x) & (extremes != extremes)) for x in xs]
    found = [np.where(h, p, np.iinfo(np.int64).max) for h, p in zip(has, places, strict=True)]
    return extremes, np.minimum.reduce(found)


def test_the_lowest_rank_and_the_lowest_index() -> None:
    def work(group: arraycomm.Group) -> None:
        for dtype in DTYPES:
            xs = [_x(rank, dtype) for rank in range(group.size)]
            indices = [np.random.default_rng(9 + rank).integers(-5, 5, (700, 3)) for rank in range(group.size)]
            for op in ("minloc", "maxloc"):
                for given, places in ((None, list(range(group.size))), (7 - group.rank, [7 - r for r in range(group.size)]),
                                      (indices[group.rank], indices)):
                    values, found = group.all_reduce(xs[group.rank], op, index=given)
                    extremes, wanted = _expected(xs, op, places)
                    assert values.dtype == extremes.dtype and found.dtype == np.int64
                    np.testing.assert_array_equal(values, extremes)
                    np.testing.assert_array_equal(found, wanted)

    ranks(work)


def test_reduce_gives_them_to_the_root() -> None:
    def work(group: arraycomm.Group) -> None:
        x, root = _x(group.rank, "float32"), group.size - 1
        extremes, wanted = group.all_reduce(x, "maxloc")
        out = np.empty_like(x), np.empty(x.shape, np.int64)
        for found in (group.reduce(x, root, "maxloc"), group.reduce(x, root, "maxloc", index=group.rank, out=out)):
            assert (found is None) == (group.rank != root)
            if found is not None:
                np.testing.assert_array_equal(found[0], extremes)
                np.testing.assert_array_equal(found[1], wanted)
        part = group.split(int(group.rank == 0), key=-group.rank)  # groups of one rank and of two, the last rank first
        assert part is not None
        with part:
            found = part.reduce(np.array([group.rank, 1]), 0, "minloc")
            assert (found is None) == (part.rank > 0)
            assert found is None or [y.tolist() for y in found] == ([[0, 1], [0, 0]] if group.rank == 0 else [[1, 1], [1, 0]])

    ranks(work)


def test_special_values() -> None:
    """NaN of any payload is an extreme; -0 is below +0; 0-d and empty arrays; strided ones; out."""
    def work(group: arraycomm.Group) -> None:
        odd = np.array([0x7FC00123, 0xFFC00000, 0x7F800001], np.uint32).view(np.float32)
        x = np.array([np.nan if group.rank == 2 else 1, odd[group.rank], 0.0 if group.rank == 0 else -0.0, np.inf], np.float32)
        values, found = group.all_reduce(x, "minloc")
        assert np.isnan(values[:2]).all() and np.signbit(values[2]) and found.tolist() == [2, 0, 1, 0]
        assert group.all_reduce(x, "maxloc")[1].tolist() == [2, 0, 0, 0]
        assert [int(y) for y in group.all_reduce(np.array(5 - group.rank), "minloc")] == [3, 2]
        assert [y.shape for y in group.all_reduce(np.zeros((0, 3)), "maxloc")] == [(0, 3)] * 2
        out = np.empty((2, 700), np.float64), np.empty((2, 700), np.int64)
        y = np.asarray(_x(group.rank, "float64")[:, :2].T)
        values, found = group.all_reduce(y, "minloc", out=out)
        assert values is out[0] and found is out[1]
        np.testing.assert_array_equal(out[1], group.all_reduce(y.copy(), "minloc")[1])

    ranks(work)


WRONG: list[tuple[Callable[[Any, np.ndarray], Any], type[Exception], str]] = [
    (lambda g, x: g.all_reduce(x, "minloc", async_op=True), ValueError, "asynchronous"),
    (lambda g, x: g.all_reduce(x.astype(complex), "minloc"), TypeError, "no order"),
    (lambda g, x: g.all_reduce(x, "minloc", index=np.zeros(2)), TypeError, "index must be"),
    (lambda g, x: g.all_reduce(x, "minloc", index=np.zeros(2, np.int64)), ValueError, "shape"),
    (lambda g, x: g.all_reduce(x, index=3), ValueError, "index is for minloc"),
    (lambda g, x: g.all_reduce(x, "minloc", out=(x, np.empty(3, np.int64))), ValueError, "overlap"),
    (lambda g, x: g.reduce(x, 0, "sum", index=1), ValueError, "index is for minloc"),
    (lambda g, x: g.reduce(x, 9, "minloc"), ValueError, "root 9"),
    (lambda g, x: g.reduce_scatter(x, "minloc"), ValueError, "take the min of where"),
]


def test_what_is_wrong_is_said() -> None:
    def work(group: arraycomm.Group) -> None:
        for call, kind, text in WRONG:
            with pytest.raises(kind, match=text):
                call(group, np.ones(3))
        with pytest.raises(arraycomm.CollectiveMismatch):
            group.all_reduce(np.ones(3), "minloc" if group.rank else "min")

    ranks(work, 2)

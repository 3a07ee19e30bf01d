"""Grids of ranks, and the exchange of borders. The ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arraycomm


def ranks(work: Callable[[arraycomm.Group], Any], size: int) -> list[Any]:
    return arraycomm.run(work, size, timeout=60.0)


def test_places_and_neighbours() -> None:
    def work(group: arraycomm.Group) -> None:
        cart = group.cart((2, 3), (False, True))
        assert cart.dims == (2, 3) and cart.coords == divmod(group.rank, 3)
        assert [cart.rank_of(cart.coords_of(rank)) for rank in range(6)] == list(range(6))
        row, column = cart.coords
        assert cart.shift(0) == (group.rank - 3 if row else None, group.rank + 3 if not row else None)
        assert cart.shift(1) == cart.shift(-1) == (3 * row + (column - 1) % 3, 3 * row + (column + 1) % 3)
        assert cart.shift(1, 2) == cart.shift(1, -1) and cart.shift(0, 2) == (None, None)
        assert group.cart((0, 0)).dims == (3, 2) and group.cart((0, 2, 0)).dims == (3, 2, 1) and group.cart([0]).dims == (6,)
        sub = cart.sub([1])
        assert sub.dims == (3,) and sub.periods == (True,) and sub.coords == (column,)
        assert sub.group.all_gather(np.array(group.rank)).tolist() == [3 * row, 3 * row + 1, 3 * row + 2]
        assert cart.sub([0]).group.all_gather(np.array(group.rank)).tolist() == [column, column + 3]
        alone = cart.sub([])
        assert alone.group.size == 1 and cart.sub([1, 0]).dims == (2, 3)

    ranks(work, 6)


WRONG: list[tuple[Callable[[arraycomm.Group], Any], type[Exception], str]] = [
    (lambda g: g.cart((3,)), ValueError, "product is the group's size 2"),
    (lambda g: g.cart(()), ValueError, "product"),
    (lambda g: g.cart((0, 3)), ValueError, "product"),
    (lambda g: g.cart((-1, -2)), ValueError, "positive"),
    (lambda g: g.cart((2, 1.5)), TypeError, "dims"),  # type: ignore[arg-type]
    (lambda g: g.cart((2,), (True, False)), ValueError, "periods"),
    (lambda g: g.cart((2,)).shift(1), ValueError, "dim must be"),
    (lambda g: g.cart((2,)).coords_of(2), ValueError, "rank"),
    (lambda g: g.cart((2,)).rank_of((0, 0)), ValueError, "coords"),
    (lambda g: g.cart((2,)).halo_exchange(np.zeros(2)), ValueError, "three times"),
    (lambda g: g.cart((2, 1)).halo_exchange(np.zeros(9)), ValueError, "2 dimensions"),
    (lambda g: g.cart((2,)).halo_exchange(np.zeros(9), (1, 1)), ValueError, "width"),
]


def test_what_is_wrong_is_said() -> None:
    def work(group: arraycomm.Group) -> None:
        for call, kind, text in WRONG:
            with pytest.raises(kind, match=text):
                call(group)

    ranks(work, 2)


def _halos(group: arraycomm.Group, dims: tuple[int, ...], periods: tuple[bool, ...], widths: tuple[int, ...],
           made: Callable[[np.ndarray], Any], rest: tuple[int, ...] = ()) -> None:
    """Every rank's borders are what the whole array has there."""
    cart = group.cart(dims, periods)
    inside = [3 + dim for dim in range(len(dims))]
    whole = np.arange(np.prod([n * k for n, k in zip(dims, inside, strict=True)]) * int(np.prod(rest)), dtype=np.float64)
    whole = whole.reshape(*(n * k for n, k in zip(dims, inside, strict=True)), *rest) + 1
    padded = whole
    for dim, (period, width) in enumerate(zip(periods, widths, strict=True)):
        pad = [(0, 0)] * whole.ndim
        pad[dim] = (width, width)
        padded = np.pad(padded, pad, mode="wrap") if period else np.pad(padded, pad)
    at = tuple(slice(c * k, (c + 1) * k + 2 * w) for c, k, w in zip(cart.coords, inside, widths, strict=True))
    mine = padded[at].copy()
    empty = np.zeros_like(mine)
    middle = tuple(slice(w, w + k) for k, w in zip(inside, widths, strict=True))
    empty[middle] = mine[middle]
    x = made(empty)
    y = cart.halo_exchange(x, widths)
    np.testing.assert_array_equal(np.asarray(y), mine)


GRIDS = [((4,), (True,), (1,)), ((4,), (False,), (2,)), ((2, 2), (True, False), (1, 2)), ((2, 2), (True, True), (1, 1)),
         ((1, 4), (True, True), (2, 0)), ((2, 1, 2), (False, True, True), (1, 1, 2))]


def test_borders() -> None:
    """Corners too; a dimension of one or two ranks, both of whose neighbours are the same rank or this one itself."""
    def work(group: arraycomm.Group) -> None:
        for grid in GRIDS:
            _halos(group, *grid, made=lambda x: x)
            _halos(group, *grid, made=lambda x: x, rest=(3,))
        _halos(group, *GRIDS[2], made=lambda x: np.asfortranarray(x))
        _halos(group, *GRIDS[2], made=lambda x: x.astype(np.int16))

    ranks(work, 4)


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_borders_of_other_libraries(library: str) -> None:
    lib = pytest.importorskip(library)
    make = lib.from_numpy if library == "torch" else lambda x: lib.asarray(x.astype(np.float32))
    ranks(lambda group: _halos(group, *GRIDS[2], made=make), 4)


def test_arrays_that_differ_across_the_border() -> None:
    def work(group: arraycomm.Group) -> None:
        with pytest.raises(arraycomm.CollectiveMismatch):
            group.cart((2, 1)).halo_exchange(np.zeros((4, 4 + group.rank)))
        assert group.all_reduce(np.ones(1))[0] == 2  # it can be used as before

    ranks(work, 2)

"""Cartesian topology of ranks: neighbours, groups of rows and columns, and halo exchange."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import arguments

if TYPE_CHECKING:
    from .group import Group
    from .part import Array

_TAG = 2**61  # first tag of halo_exchange(): two for each dimension


def _divided(size: int, dims: Sequence[int]) -> tuple[int, ...]:
    """dims with its zeros replaced by lengths that are as equal as possible, in decreasing order."""
    found, free = [arguments.integer("dims", n) for n in dims], [i for i, n in enumerate(dims) if n == 0]
    rest = size // max(1, math.prod(n for n in found if n))
    lengths = [1] * len(free)
    for prime in _primes(rest) if free else ():
        lengths[lengths.index(min(lengths))] *= prime
    for i, length in zip(free, sorted(lengths, reverse=True), strict=True):
        found[i] = length
    if not found or min(found) < 1 or math.prod(found) != size:
        raise ValueError(f"dims must be positive numbers whose product is the group's size {size}, or 0 where a length is to be "
                         f"found; got {tuple(dims)}")
    return tuple(found)


def _primes(n: int) -> list[int]:
    """The prime factors, the largest first."""
    found, divisor = [], 2
    while n > 1:
        while n % divisor == 0:
            found.append(divisor)
            n //= divisor
        divisor += 1
    return found[::-1]


class Cart:
    """A group's ranks in a grid, in row-major order. Made by Group.cart() on every rank; nothing is sent for it.

    Attributes: group; dims (lengths); periods (of each dimension, whether its ends are neighbours); coords (this rank's place).
    """

    def __init__(self, group: Group, dims: Sequence[int], periods: bool | Sequence[bool]) -> None:
        self.group, self.dims = group, _divided(group.size, dims)
        self.periods = (periods,) * len(self.dims) if isinstance(periods, bool) else tuple(bool(p) for p in periods)
        if len(self.periods) != len(self.dims):
            raise ValueError(f"periods must be a bool, or one for each of {len(self.dims)} dims; got {periods}")
        self.coords = self.coords_of(group.rank)

    def __repr__(self) -> str:
        return f"<Cart of {self.group.name!r}: {'x'.join(map(str, self.dims))}, rank {self.group.rank} at {self.coords}>"

    def coords_of(self, rank: int) -> tuple[int, ...]:
        """The place of a rank of the group.

        - Blocks: never; nothing is sent.
        - Errors: ValueError for what is no rank of the group.

        Examples:
            >>> arraycomm.run(lambda group: group.cart([2, 2]).coords_of(3), 4)[0]
            (1, 1)
        """
        rest, found = arguments.rank("rank", rank, self.group.size), []
        for length in reversed(self.dims):
            rest, place = divmod(rest, length)
            found.append(place)
        return tuple(found[::-1])

    def rank_of(self, coords: Sequence[int]) -> int | None:
        """The rank at a place; beyond the ends of a dimension that is not periodic None.

        - Blocks: never; nothing is sent.
        - Errors: ValueError where coords are not as many as dimensions.

        Examples:
            >>> arraycomm.run(lambda group: group.cart([2, 2], periods=[True, False]).rank_of([2, 1]), 4)[0]
            1
        """
        if len(coords) != len(self.dims):
            raise ValueError(f"coords must have {len(self.dims)} numbers, got {tuple(coords)}")
        rank = 0
        for place, length, period in zip(coords, self.dims, self.periods, strict=True):
            if not period and not 0 <= place < length:
                return None
            rank = rank * length + place % length
        return rank

    def shift(self, dim: int, distance: int = 1) -> tuple[int | None, int | None]:
        """(source, dest): the ranks `distance` before and behind this one along a dimension, None beyond its end. An array that
        every rank sends to its dest comes from its source.

        - Blocks: never; nothing is sent.
        - Errors: ValueError for a dimension that the grid does not have.

        Examples:
            >>> arraycomm.run(lambda group: group.cart([3]).shift(0), 3)
            [(None, 1), (0, 2), (1, None)]
        """
        dim = self._dim(dim)
        place = list(self.coords)
        found = []
        for step in (-distance, distance):
            place[dim] = self.coords[dim] + step
            found.append(self.rank_of(place))
        return found[0], found[1]

    def _dim(self, dim: int) -> int:
        dim = arguments.integer("dim", dim)
        if not -len(self.dims) <= dim < len(self.dims):
            raise ValueError(f"dim must be one of {len(self.dims)} dimensions, got {dim}")
        return dim % len(self.dims)

    def sub(self, keep: Sequence[int]) -> Cart:
        """The grid of these dimensions alone (by number) that this rank is in: its row, its column, its plane. All ranks call it;
        it has a new group, which is closed with this one's.

        - Blocks: until every rank has called it, as Group.split().
        - Errors: ValueError for a dimension that the grid does not have; then as Group.split().

        Examples:
            >>> arraycomm.run(lambda group: group.cart([2, 2]).sub([1]).group.ranks, 4)
            [(0, 1), (0, 1), (2, 3), (2, 3)]
        """
        kept = sorted({self._dim(dim) for dim in keep})
        apart = [place for dim, place in enumerate(self.coords) if dim not in kept]
        lengths = [length for dim, length in enumerate(self.dims) if dim not in kept]
        color = 0
        for place, length in zip(apart, lengths, strict=True):
            color = color * length + place
        group = self.group.split(color, self.group.rank)
        assert group is not None  # it has a color
        return Cart(group, [self.dims[dim] for dim in kept] or [1], [self.periods[dim] for dim in kept] or [False])

    def halo_exchange(self, x: Array, width: int | Sequence[int] = 1, *, timeout: float | None = None) -> Array:
        """Fills the borders of x with what the neighbours have inside; gives x.

        Args:
            x: this rank's part of an array with a border of `width` rows at both ends of its first len(dims) dimensions.
            width: rows of the border, one number, or one for each dimension.

        What lies inside goes to the neighbours. One dimension after the other, so that corners come from the ranks across.
        Borders at an end without a neighbour stay as they are.

        - Shapes: dimensions beyond the grid's are not cut. The neighbours' arrays may be longer or shorter along the dimension of
          the exchange only.
        - Dtypes: every one, the same on all ranks.
        - Memory: x is written in place. An array that cannot be written (JAX's) is not changed; the result has the borders then.
        - Blocks: until the neighbours' borders are here.
        - Timeout: seconds, of each message; None takes the group's. CollectiveTimeout, and the group has failed.
        - Errors: ValueError where x is too short, before anything is sent. CollectiveMismatch for ranks whose arrays differ.

        Examples:
            >>> def work(group):
            ...     x = np.array([-1, 10 * group.rank, 10 * group.rank + 1, -1])
            ...     return group.cart([2]).halo_exchange(x).tolist()
            >>> arraycomm.run(work, 2)
            [[-1, 0, 1, 10], [1, 10, 11, -1]]
        """
        widths = (width,) * len(self.dims) if isinstance(width, int) else tuple(width)
        shape = getattr(x, "shape", ())
        if len(widths) != len(self.dims) or any(n < 0 for n in widths):
            raise ValueError(f"width must be a number of rows, or one for each of {len(self.dims)} dims; got {width}")
        if len(shape) < len(self.dims) or any(n < 3 * w for n, w in zip(shape, widths, strict=False)):
            raise ValueError(f"x must have {len(self.dims)} dimensions or more, of three times the border's width {widths} at "
                             f"least; its shape is {tuple(shape)}")
        for dim, rows in enumerate(widths):
            if rows:
                x = self._exchange(x, dim, rows, timeout)
        return x

    def _exchange(self, x: Any, dim: int, rows: int, timeout: float | None) -> Any:
        before, behind = self.shift(dim)
        length, at = x.shape[dim], (slice(None),) * dim
        works = []
        with self.group.batch():  # (neighbour, slice to send, slice to receive, direction)
            for peer, inside, border, way in ((before, slice(rows, 2 * rows), slice(0, rows), 0),
                                              (behind, slice(length - 2 * rows, length - rows), slice(length - rows, length), 1)):
                if peer is not None:
                    here = (*at, inside)
                    face = x[here]
                    self.group.isend(face, peer, _TAG + 2 * dim + way, timeout=timeout)
                    got = self.group.irecv(peer, _TAG + 2 * dim + 1 - way, like=face, timeout=timeout)
                    works.append(((*at, border), got))
        for place, work in works:
            received = work.result().array
            if hasattr(x, "at"):
                x = x.at[place].set(received)
            else:
                x[place] = received
        return x

"""How a collective on long arrays is cut into pieces that are collectives themselves. Pure arithmetic, in elements.

A side of an operation is a run of blocks: one where the whole array takes part as one, one a rank where ranks have parts of
their own. Piece k takes the k-th slice of every block, so that each piece is the same operation on less.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.typed import TYPE_CHECKING

PIECE_BYTES = 4 << 20  # of one side: long beside what a copy costs to start, short beside the arrays that are worth cutting
_ALIGNED = 64  # bytes: pieces begin where vectors and cache lines do

if TYPE_CHECKING:
    Blocks = Sequence[int]


def elements(itemsize: int, blocks: int, piece_bytes: int) -> int:
    """Elements of one block that a piece takes: the same on all ranks, whatever they hold."""
    return max(1, piece_bytes // blocks // _ALIGNED * (_ALIGNED // itemsize))


def number(longest: int, per_piece: int) -> int:
    """Pieces that it takes for blocks of at most `longest` elements; one where there are none: it is a meeting too."""
    return max(1, -(-longest // per_piece))


def counts(blocks: Blocks, index: int, per_piece: int) -> list[int]:
    """Elements of each block that piece `index` takes."""
    return [max(0, min(per_piece, block - index * per_piece)) for block in blocks]


def slices(blocks: Blocks, index: int, per_piece: int) -> list[tuple[int, int]]:
    """(first element, elements) in the array, block by block, without those that are at their end."""
    found, start = [], 0
    for block, count in zip(blocks, counts(blocks, index, per_piece), strict=True):
        if count:
            found.append((start + index * per_piece, count))
        start += block
    return found

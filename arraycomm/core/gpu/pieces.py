"""Segmentation of a collective on long arrays into pieces, each a collective itself. Pure arithmetic, in elements.

The input or output of an operation is a sequence of blocks: a single one for the whole array, or one per rank. Piece k takes the
k-th slice of every block, so that each piece is the same operation on fewer elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

PIECE_BYTES = 4 << 20  # per input or output: long compared with a copy's latency, short compared with the arrays to segment
_ALIGNED = 64  # bytes: pieces are aligned to vectors and cache lines

if TYPE_CHECKING:
    Blocks = Sequence[int]


def elements(itemsize: int, blocks: int, piece_bytes: int) -> int:
    """Elements of one block per piece: equal on all ranks."""
    return max(1, piece_bytes // blocks // _ALIGNED * (_ALIGNED // itemsize))


def number(longest: int, per_piece: int) -> int:
    """Number of pieces for blocks of at most `longest` elements; at least one: an empty operation also synchronises."""
    return max(1, -(-longest // per_piece))


def counts(blocks: Blocks, index: int, per_piece: int) -> list[int]:
    """Elements of each block in piece `index`."""
    return [max(0, min(per_piece, block - index * per_piece)) for block in blocks]


def slices(blocks: Blocks, index: int, per_piece: int) -> list[tuple[int, int]]:
    """(first element, elements) in the array for each block, without exhausted blocks."""
    starts = accumulate(blocks, initial=index * per_piece)
    return [(start, count) for start, count in zip(starts, counts(blocks, index, per_piece), strict=False) if count]

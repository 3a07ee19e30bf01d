"""Known inputs, and what every operation makes of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PERIOD = 1021  # prime: no piece size divides it
_PIECE = _PERIOD * 1024  # elements compared at a time
_EXACT = 256  # up to here whole numbers are exact in bfloat16

Array = NDArray[np.float32]
Piece = tuple[Array, int, int]  # a period, where in it the piece begins, elements


class Pattern:
    """Inputs of one rank: small whole numbers of which all sums are exact."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._modulus = max(2, min(13, _EXACT // size + 1))

    def _period(self, rank: int) -> Array:
        return ((np.arange(_PERIOD) * 3 + rank) % self._modulus).astype(np.float32)

    def input(self, count: int) -> Array:
        return _repeat(self._period(self.rank), count)

    def expected(self, operation: str, share: int) -> list[Piece]:
        """What this rank receives, piece by piece; nothing where it receives nothing."""
        begin, partner = self.rank * share, self.rank ^ 1
        if operation == "barrier" or (operation == "sendrecv" and partner >= self.size):
            return []
        ranks = {"all_reduce": self.size, "reduce_scatter": self.size, "scan": self.rank + 1, "exscan": self.rank}.get(operation)
        if ranks is not None:  # MPI's exscan gives rank 0 nothing
            total = np.sum([self._period(rank) for rank in range(ranks)], axis=0)
            return [(total, begin if operation == "reduce_scatter" else 0, share)] if ranks else []
        if operation in ("all_gather", "all_to_all"):
            return [(self._period(rank), begin if operation == "all_to_all" else 0, share) for rank in range(self.size)]
        return [(self._period(0 if operation == "broadcast" else partner), 0, share)]

    @staticmethod
    def count_wrong(got: Array, pieces: list[Piece]) -> int:
        """Elements that differ; missing and surplus ones count too."""
        wrong, at = 0, 0
        for period, begin, count in pieces:
            for start in range(0, count, _PIECE):
                length = min(_PIECE, count - start)
                part = got[at + start : at + start + length]
                wrong += length - len(part) + int(np.count_nonzero(part != _repeat(period, len(part), begin + start)))
            at += count
        return wrong + max(0, len(got) - at)


def _repeat(period: Array, count: int, start: int = 0) -> Array:
    return np.resize(np.roll(period, -(start % _PERIOD)), count)

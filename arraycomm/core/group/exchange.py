"""Small exchanges of integers between the ranks of a communicator, before an operation that needs them."""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..arrays.buffer import Buffer
from ..arrays.dlpack import resolve
from ..arrays.opaque import dtype_name, row
from ..base.errors import CollectiveMismatch
from ..interface.backend import Communicator
from ..interface.kinds import KINDS
from . import arguments, shapes

if TYPE_CHECKING:
    from .part import Part


def _int64(values: Sequence[int]) -> tuple[array.array[int], Buffer]:
    memory = array.array("q", values)
    return memory, resolve(memory)


def gather_integers(communicator: Communicator, mine: Sequence[int], timeout: float | None,
                    layout: int = 0) -> list[tuple[int, ...]]:
    """All-gathers 64-bit integers, equally many on each rank, in rank order. layout: see Communicator.collective()."""
    n, size = len(mine), communicator.size
    _, src = _int64(mine)
    everything, dst = _int64([0] * (n * size))
    communicator.collective(KINDS["all_gather"], src, dst, layout=layout, timeout=timeout)
    return [tuple(everything[i * n : (i + 1) * n]) for i in range(size)]


def _tail(src: Buffer) -> int:
    """63 bits that differ where dtype or the dimensions after the first differ."""
    return hash((src.dtype, src.shape[1:])) & 0x7FFFFFFFFFFFFFFF


def first_dimensions(group: Part, src: Buffer, timeout: float | None) -> list[int]:
    """The first dimension of every rank's array. CollectiveMismatch (on all ranks) if other dimensions differ."""
    if not src.shape:
        raise ValueError("uneven arrays need a first dimension, and a 0-d array has none")
    answers = gather_integers(group._communicator, [src.shape[0], _tail(src)], timeout)
    _same_tail(group, src, [answer[1] for answer in answers])
    return [answer[0] for answer in answers]


def given_rows(group: Part, src: Buffer, counts: Sequence[int] | None, uneven: bool, timeout: float | None) -> list[int] | None:
    """The first dimension of every rank's array, where they may differ."""
    if counts is not None:
        return shapes.check_rows(src.shape, group.rank, group.size, counts)
    return first_dimensions(group, src, timeout) if uneven else None


def scattered_rows(group: Part, src: Buffer, root: int, counts: Sequence[int] | None, timeout: float | None) -> list[int]:
    """The rows of the root's array for each rank. counts: the caller's; None: the rows of each rank's array, and the rest for
    the root."""
    if counts is not None and group.rank == root:
        return shapes.check_counts(src.shape, group.size, counts, "counts")
    if counts is not None:
        return arguments.counts("counts", counts, group.size)
    rows = first_dimensions(group, src, timeout)
    rows[root] -= sum(rows) - rows[root]
    if rows[root] < 0:  # on all ranks
        raise ValueError(f"scatter: the ranks other than the root {root} take {-rows[root]} rows more than its x has")
    return rows


def blocks_of_root(group: Part, root: int, src: Buffer, rows: Sequence[int]) -> tuple[list[int], list[int]]:
    """Counts of an all_to_all that replaces a gather: (sent, received) on this rank. A scatter swaps the two."""
    whole = [n * row(src) for n in rows]
    own = [whole[group.rank] if rank == root else 0 for rank in range(group.size)]
    return own, whole if group.rank == root else [0] * group.size


def mismatch(group: Part, ranks: Sequence[int], text: str) -> CollectiveMismatch:
    """The error that all ranks raise, with the differing ranks."""
    return CollectiveMismatch(f"rank {group.rank} of {group.size} in group {group.name!r}: {text}", ranks=tuple(ranks),
                              members=group.ranks)


def same_values(group: Part, values: Sequence[int], otherwise: str) -> None:
    """CollectiveMismatch (on all ranks; the group stays usable) unless all are equal. values: every rank's. otherwise: the text
    about ranks with different values."""
    odd = [rank for rank, value in enumerate(values) if value != values[0]]
    if odd:
        raise mismatch(group, odd, f"ranks 0 and {odd[0]} {otherwise}")


def _same_tail(group: Part, src: Buffer, tails: Sequence[int]) -> None:
    same_values(group, tails, "give arrays of different dtype or different dimensions after the first; here it is "
                f"{dtype_name(src)} of shape {src.shape}")


def agreed_counts(group: Part, src: Buffer, send: Sequence[int], recv: Sequence[int] | None,
                  timeout: float | None) -> list[int]:
    """The rows that every rank sends to this one.

    CollectiveMismatch (on all ranks) if a rank expects other counts, or arrays differ beyond their first dimension.
    """
    size, me = group.size, group.rank
    expected_here = [-1] * size if recv is None else arguments.counts("recv_counts", recv, size)
    answers = gather_integers(group._communicator, [_tail(src), *send, *expected_here], timeout)
    _same_tail(group, src, [answer[0] for answer in answers])
    for receiver, answer in enumerate(answers):
        for sender in range(size):
            expected, given = answer[1 + size + sender], answers[sender][1 + receiver]
            if expected not in (-1, given):
                raise mismatch(group, (receiver, sender), f"all_to_all: rank {receiver} expects {expected} rows from rank "
                               f"{sender}, which sends {given}")
    return [answers[sender][1 + me] for sender in range(size)]

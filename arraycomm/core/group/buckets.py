"""Groups arrays into buckets: for small arrays the latency of an operation is more than the transfer time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

DEFAULT_BYTES = 25 << 20


def plan(sizes: Sequence[int], kinds: Sequence[Hashable], limit: int = DEFAULT_BYTES) -> list[list[int]]:
    """Lists of indices, one per bucket, from the last array to the first: the order of gradients in the backward pass.

    sizes: in bytes. kinds: arrays of different kinds (dtypes) share no bucket. limit: bytes that a bucket holds at most,
    unless one array has more. Buckets are in the order in which they are full if arrays come from the last to the first.
    """
    if limit < 1:
        raise ValueError(f"a bucket holds at least 1 byte, got {limit}")
    filling: dict[Hashable, tuple[list[int], int]] = {}
    buckets = []
    for index in reversed(range(len(sizes))):
        bucket, used = filling.get(kinds[index], ([], 0))
        if not bucket or used + sizes[index] > limit:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(index)
        filling[kinds[index]] = bucket, used + sizes[index]
    return sorted(buckets, key=lambda bucket: -bucket[-1])

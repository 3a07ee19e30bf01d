"""core/group/buckets.py: which arrays share a bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arraycomm.core.group.buckets import plan


def test_from_the_last_to_the_first() -> None:
    assert plan([10, 10, 10, 10], "ffff", 20) == [[3, 2], [1, 0]]
    assert plan([10, 100, 10], "fff", 20) == [[2], [1], [0]]  # one that is longer has a bucket of its own
    assert plan([], "", 20) == []


def test_dtypes_do_not_mix() -> None:
    assert plan([4, 2, 4, 2], "fhfh", 100) == [[3, 1], [2, 0]]
    assert plan([4, 2, 4, 2], "hffh", 100) == [[2, 1], [3, 0]]  # the one that is full first goes first


def test_a_limit_below_a_byte() -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        plan([1], "f", 0)


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc"))), st.integers(1, 60))
def test_every_array_once_and_no_bucket_too_full(arrays: list[tuple[int, str]], limit: int) -> None:
    sizes, kinds = [size for size, _ in arrays], [kind for _, kind in arrays]
    found = plan(sizes, kinds, limit)
    assert sorted(index for bucket in found for index in bucket) == list(range(len(arrays)))
    for bucket in found:
        assert len({kinds[index] for index in bucket}) == 1 and bucket == sorted(bucket, reverse=True)
        assert len(bucket) == 1 or sum(sizes[index] for index in bucket) <= limit
    assert [bucket[-1] for bucket in found] == sorted((bucket[-1] for bucket in found), reverse=True)

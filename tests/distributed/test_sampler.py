"""DistributedSampler: the same order as torch's, without torch."""

from __future__ import annotations

import itertools

import pytest

import arraycomm.distributed as dist
from arraycomm.distributed.sampler import _LONGEST, permutation

# torch.randperm(10, generator=torch.Generator().manual_seed(seed)) of torch 2.13.
KNOWN = {0: [4, 1, 7, 5, 3, 9, 0, 8, 6, 2], 12345: [0, 7, 1, 6, 4, 2, 8, 9, 5, 3]}


def test_the_order_is_known() -> None:
    for seed, order in KNOWN.items():
        assert list(permutation(10, seed)) == order
    assert list(permutation(0, 1)) == [] and list(permutation(1, 1)) == [0]
    assert list(permutation(10, 2**32)) == KNOWN[0]
    with pytest.raises(ValueError, match="use shuffle=False"):
        permutation(_LONGEST, 0)


def test_ranks_share_the_dataset() -> None:
    for count, ranks, drop in itertools.product((1, 2, 10, 23), (1, 3, 4), (False, True)):
        parts = [dist.DistributedSampler(range(count), ranks, rank, seed=5, drop_last=drop) for rank in range(ranks)]
        lists = [list(part) for part in parts]
        assert {len(part) for part in parts} == {len(part) for part in lists} and len({len(part) for part in lists}) == 1
        together = [index for row in zip(*lists, strict=True) for index in row]
        assert len(set(together)) == (count // ranks * ranks if drop else count)


def test_epochs_and_order() -> None:
    sampler = dist.DistributedSampler("x" * 50, 2, 1)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(sampler) == list(dist.DistributedSampler("x" * 50, 2, 1, seed=1))
    assert list(dist.DistributedSampler("x" * 5, 2, 1, shuffle=False)) == [1, 3, 0]


def test_refusals() -> None:
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=r"interval \[0, 1\]"):
            dist.DistributedSampler([1], 2, rank)
    with pytest.raises(ValueError, match="has not been initialized"):
        dist.DistributedSampler([1])


def test_beside_torch() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.utils.data.distributed.DistributedSampler
    for count, seed in itertools.product((1, 2, 97, 30001), (0, 7, 2**32 + 5)):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        assert order.tolist() == list(permutation(count, seed))
    for count, ranks, shuffle, drop in itertools.product((1, 5, 17), (1, 2, 7), (False, True), (False, True)):
        for rank in range(ranks):
            a = dist.DistributedSampler(range(count), ranks, rank, shuffle, 3, drop)
            b = theirs(range(count), ranks, rank, shuffle, 3, drop)
            a.set_epoch(2)
            b.set_epoch(2)
            assert list(a) == list(b) and len(a) == len(b)

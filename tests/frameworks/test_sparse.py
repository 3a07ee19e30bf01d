"""all_reduce of torch's sparse tensors: as the dense sum, with the same bits on all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import arraycomm

torch = pytest.importorskip("torch")
sparse = pytest.importorskip("arraycomm.frameworks.torch.sparse")

SIZE = 3
DTYPES = ("int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def _given(rank: int, lengths: tuple[int, ...], rest: tuple[int, ...], dtype: str, most: int) -> Any:
    """This rank's tensor; small whole numbers, whose sums every dtype holds exactly."""
    generator = torch.Generator().manual_seed(100 * rank + most)
    count = int(torch.randint(0, most + 1, (), generator=generator)) if rank != 1 else 0  # one rank has nothing
    indices = torch.stack([torch.randint(0, length, (count,), generator=generator) for length in lengths])
    values = torch.randint(0 if dtype == "uint8" else -4, 5, (count, *rest), generator=generator).to(getattr(torch, dtype))
    return torch.sparse_coo_tensor(indices, values * (1 - 2j) if dtype.startswith("c") else values, (*lengths, *rest))


def _reduced(facade: Any, given: Any, op: str) -> Any:
    found = given.clone()
    sparse.all_reduce_sparse(facade, found, op)
    return found


def _compare(group: arraycomm.Group, facade: Any) -> None:
    for dtype in DTYPES:
        for lengths, rest, most in (((20,), (), 30), ((6, 5), (2,), 12), ((4,), (3, 0), 3), ((3, 1, 4), (), 0)):
            everybody = [_given(rank, lengths, rest, dtype, most) for rank in range(SIZE)]
            total = sum((x.to_dense() for x in everybody[1:]), start=everybody[0].to_dense())
            found = _reduced(facade, everybody[group.rank], "sum")
            assert found.is_coalesced() and found.dtype == total.dtype and torch.equal(found.to_dense(), total), dtype
            named = {tuple(place) for x in everybody for place in x.coalesce().indices().t().tolist()}
            assert [tuple(place) for place in found.indices().t().tolist()] == sorted(named)
            means = _reduced(facade, everybody[group.rank], "avg").to_dense()
            assert torch.equal(means, group.all_reduce(everybody[group.rank].to_dense(), op="avg")), (dtype, lengths)


def _same_bits(group: arraycomm.Group, facade: Any) -> None:
    generator = torch.Generator().manual_seed(group.rank)
    places = torch.randint(0, 500, (1, 2000), generator=generator)
    values = torch.randn(2000, 3, generator=generator) * 10.0 ** torch.randint(-9, 9, (2000, 1), generator=generator)
    found = _reduced(facade, torch.sparse_coo_tensor(places, values, (500, 3)), "sum")
    for part in (found.indices(), found.values().view(torch.int32)):
        assert (group.all_gather(part, form="stack") == part).all()


def _refused(group: arraycomm.Group, facade: Any) -> None:
    x = torch.sparse_coo_tensor([[0, 3]], [1.0, 2.0], (4,))
    with pytest.raises(RuntimeError, match="SUM or AVG, got MAX"):
        sparse.all_reduce_sparse(facade, x, "max")
    for differing in ((torch.sparse_coo_tensor([[0]], [1.0], (5,)), "sum"), (x.double(), "sum"), (x, "avg")):
        given = differing if group.rank == 2 else (x, "sum")
        with pytest.raises(arraycomm.CollectiveMismatch, match="ranks 0 and 2 give sparse tensors of another shape") as caught:
            sparse.all_reduce_sparse(facade, *given)
        assert caught.value.ranks == (2,)


def _check(group: arraycomm.Group) -> None:
    for check in (_compare, _same_bits, _refused):
        check(group, SimpleNamespace(core=group))
    group.barrier()


def test_sparse() -> None:
    arraycomm.run(_check, SIZE, timeout=30.0)

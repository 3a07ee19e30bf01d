"""frameworks/compression.py: what is lost stays below what the module states, and all ranks have the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import arraycomm
from arraycomm.frameworks.compression import SCHEMES, compressed_all_reduce

from .rounding import contribution, rounding

BLOCK = 64


def _check(group: arraycomm.Group) -> None:
    for scheme in SCHEMES:
        for count in (0, 1, 63, 64, 1000, 20_000):
            everybody = [contribution(r, count) for r in range(group.size)]
            for op, exact in (("sum", sum(x.astype(float) for x in everybody)),
                              ("avg", sum(x.astype(float) for x in everybody) / group.size)):
                found = compressed_all_reduce(group, everybody[group.rank], scheme, op=op, block=BLOCK)
                assert found.dtype == np.float32 and found.shape == (count,)
                scale = 1 if op == "sum" else group.size
                inputs = sum(rounding(x, scheme, BLOCK) for x in everybody) / scale
                # The last rounding is of the sum, which may be off already; 1e-6: float32's own additions.
                limit = inputs + rounding(np.abs(exact) + inputs, scheme, BLOCK) + 1e-6 * sum(np.abs(x) for x in everybody)
                assert (np.abs(found - exact) <= limit).all(), (scheme, count, op)
                assert (group.all_reduce(found, op="max") == found).all()
    _odd(group)
    _large(group)
    _differing(group)
    group.barrier()


def _odd(group: arraycomm.Group) -> None:
    x = np.ones((4, 2 * BLOCK), np.float32)
    x[1, 3] = np.inf if group.rank == 0 else 1
    for scheme in ("float8", "int8"):
        found = compressed_all_reduce(group, x, scheme, block=BLOCK)
        assert np.isnan(found[1, :BLOCK]).all() and np.isfinite(np.delete(found, 1, axis=0)).all()
    for wrong, kind, text in ((np.zeros(3), TypeError, "float32"), (np.zeros(3, np.float32), ValueError, "scheme is one of")):
        with pytest.raises(kind, match=text):
            compressed_all_reduce(group, wrong, "int8" if kind is TypeError else "int4")
    long = compressed_all_reduce(group, np.ones(3, np.float32), "int8", block=10**11)
    assert np.allclose(long, group.size, rtol=2**-6)
    with pytest.raises(TypeError, match="block must be an integer"):
        compressed_all_reduce(group, np.zeros(3, np.float32), "int8", block=2.5)  # type: ignore[arg-type]


def _large(group: arraycomm.Group) -> None:
    """float32's largest value does not become infinite on its way, without a warning."""
    largest = np.finfo(np.float32).max
    x = np.full(BLOCK, largest if group.rank == 1 else 0, np.float32)
    for scheme, limit in (("float8", 2 * 2.0**-4), ("int8", 2 * 2.0**-7.9)):
        found = compressed_all_reduce(group, x, scheme, block=BLOCK)
        assert (np.abs(found / largest - 1) <= limit).all(), (scheme, found)
        with np.errstate(all="raise"):
            assert np.isnan(compressed_all_reduce(group, np.full(3, largest), scheme, block=BLOCK)).all()  # the sum


def _differing(group: arraycomm.Group) -> None:
    """In what does not change the length of what travels."""
    odd = group.rank == 2
    for given in ({"x": 5 if odd else 6}, {"scheme": "float8" if odd else "int8"}, {"op": "avg" if odd else "sum"}):
        x = np.ones(given.pop("x", 6), np.float32)
        with pytest.raises(arraycomm.CollectiveMismatch, match="rank 2 gave another") as caught:
            compressed_all_reduce(group, x, **{"scheme": "int8", **given})
        assert caught.value.ranks == (2,)


def test_compressed() -> None:
    arraycomm.run(_check, 3, timeout=30.0)


def test_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    with arraycomm.init() as group:
        found = compressed_all_reduce(group, torch.ones(5, 3), "int8")
    assert isinstance(found, torch.Tensor) and torch.equal(found, torch.ones(5, 3))

"""The codec of objects: what it keeps, what it refuses, and bytes that nobody encoded."""

from __future__ import annotations

import collections
import random
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from arraycomm.core import codec

EXACT: list[Any] = [None, True, False, 0, -1, 2**63, 2**64, -(2**70), 1.5, float("inf"), -0.0, 1 + 2j, "", "é\ud800", b"", b"\0x",
                    [], [1, [2, [3]]], (), (1, ((2,), "a")), {}, {"a": 1, 2: [3], (4, 5): None, b"k": {1}}, set(), {1, "a"},
                    frozenset([1, (2,)]), [[(), {}], set()]]
ARRAYS = [np.arange(6.0).reshape(2, 3).T, np.zeros((0, 3), "int8"), np.array(3), np.ones(2, ml_dtypes.bfloat16), np.array([True]),
          np.ones(3, "complex128"), torch.arange(6).reshape(2, 3)[:, ::2], torch.ones(2, dtype=torch.bfloat16), torch.tensor(2.5),
          jnp.arange(3, dtype="float32"), np.float32(2.5), np.int64(-7), np.bool_(True)]


def there_and_back(obj: Any) -> Any:
    return codec.decode(codec.encode(obj))


@pytest.mark.parametrize("obj", EXACT, ids=repr)
def test_plain_data_is_kept(obj: Any) -> None:
    found = there_and_back(obj)
    assert repr(found) == repr(obj)  # tells -0.0 from 0, True from 1 and tuples from lists


@pytest.mark.parametrize("x", ARRAYS, ids=lambda x: f"{type(x).__module__}-{x.dtype}-{tuple(x.shape)}")
def test_arrays_are_kept(x: Any) -> None:
    found = there_and_back([x])[0]
    assert type(found) is type(x) and found.dtype == x.dtype and found.shape == x.shape and bool((found == x).all())


class Number(int):
    pass


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("obj", [object(), Number(3), collections.OrderedDict(), bytearray(b"a"), memoryview(b"a"), range(3), int,
                                 np.array(["a"]), torch.ones(2).to_sparse(), LOOP, {1: [object()]}],
                         ids=lambda obj: type(obj).__name__)
def test_the_rest_is_refused(obj: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        codec.encode(obj)
    if type(obj) in (object, Number, collections.OrderedDict):
        assert "ARRAYCOMM_ALLOW_PICKLE=1" in str(caught.value)


def nested(depth: int) -> Any:
    obj: Any = 0
    for _ in range(depth):
        obj = (obj,)
    return obj


def test_depth_and_length_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert there_and_back(nested(codec.DEEPEST)) == nested(codec.DEEPEST)
    with pytest.raises(ValueError, match="contains itself"):
        codec.encode(nested(codec.DEEPEST + 1))
    deep = codec._pack(codec._described(nested(codec.DEEPEST + 9), codec.DEEPEST + 9))
    with pytest.raises(ValueError, match="no object that arraycomm encoded"):
        codec.decode(deep)
    monkeypatch.setattr(codec, "LONGEST", 100)
    with pytest.raises(ValueError, match="the limit is 100"):
        codec.encode("x" * 200)
    with pytest.raises(ValueError, match="the limit is 100"):
        codec.decode(bytes(200))


def test_damaged_bytes_are_an_error_and_nothing_else() -> None:
    """Random bytes, and everything above cut off, extended, or with some bytes changed."""
    rng = random.Random(7)
    good = [codec.encode(obj) for obj in [*EXACT, *ARRAYS[:6], EXACT]]
    bad = [rng.randbytes(rng.randrange(60)) for _ in range(3000)]
    for data in good:
        bad += [data[: rng.randrange(len(data))] for _ in range(20)] + [data + b"\0"]
        for _ in range(60):
            changed = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            bad.append(bytes(changed))
    refused = 0
    for data in bad:
        try:
            codec.decode(data)
        except ValueError:
            refused += 1
    assert refused > 3000


@pytest.mark.parametrize("array", [["os", "float32", [0], False, b""], ["numpy", "float32", [1], False, b""],
                                   ["numpy", "object", [1], False, b"12345678"], ["numpy", 5, [1], False, b""],
                                   ["numpy", "int8", [-1], False, b""], ["numpy", "int8", [2**62, 4], False, b""], [], [1] * 5],
                         ids=str)
def test_arrays_that_do_not_fit_are_refused(array: list[Any]) -> None:
    import msgpack

    with pytest.raises(ValueError, match="no object that arraycomm encoded"):
        codec.decode(msgpack.packb(msgpack.ExtType(codec._ARRAY, msgpack.packb(array))))

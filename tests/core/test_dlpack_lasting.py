"""What array exchange leaves behind after many calls, and from many threads."""

from __future__ import annotations

import gc
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from arraycomm.core.arrays.dlpack import pack, resolve, resolve_out, wrap

from ..threads import at_once
from .arrays import bits

EVERY_KIND = [np.ones(4), np.ones((4, 4)).T, torch.ones(4), torch.ones(4, 4).T, jnp.ones(4), jnp.ones(4, jnp.bfloat16),
              bytearray(16), np.ones(4, ml_dtypes.bfloat16)]


@pytest.mark.parametrize("x", EVERY_KIND, ids=lambda x: f"{type(x).__module__}-{getattr(x, 'dtype', '')}")
def test_nothing_leaks(x: Any) -> None:
    template = np.empty(0) if isinstance(x, jax.Array) else x  # 10,000 times through JAX's own importer takes long

    def run() -> None:
        for _ in range(10_000):
            resolve(x)
            wrap(pack(x), template)

    run()
    gc.collect()
    references, blocks = sys.getrefcount(x), sys.getallocatedblocks()
    run()
    gc.collect()
    assert sys.getrefcount(x) == references
    assert sys.getallocatedblocks() - blocks < 200


def test_refusals_do_not_leak() -> None:
    x = np.ones(3, ">f4")

    def run() -> None:
        for _ in range(2_000):
            for function in (resolve, resolve_out):
                with pytest.raises((TypeError, ValueError)):
                    function(x)

    run()
    gc.collect()
    references, blocks = sys.getrefcount(x), sys.getallocatedblocks()
    run()
    gc.collect()
    assert sys.getrefcount(x) == references and sys.getallocatedblocks() - blocks < 200


def test_many_threads() -> None:
    def work(_: int) -> None:
        for i in range(500):
            x = EVERY_KIND[i % 5]
            assert bits(memoryview(pack(x))) == bits(x) == bits(memoryview(resolve(x)))

    at_once(4, work)

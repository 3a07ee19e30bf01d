"""Several Buffers as one on a CUDA device. Over the stand-in for CUDA's runtime."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.dlpack import resolve
from arraycomm.core.arrays.joined import copy, joined, target
from arraycomm.core.arrays.types import DType
from tests.standin import arrays

pytestmark = pytest.mark.usefixtures("cuda")


def test_a_run_is_in_order_where_its_parts_are() -> None:
    with arrays.as_cupy() as kind:
        x = arrays.asarray(np.arange(6), "float32", kind=kind)
        stream = arrays.current_stream()
        parts = [resolve(x[:2]), resolve(x[2:])]
        assert joined(parts).stream == stream and joined(parts).address == x.address
        whole, spread = target(parts)
        assert whole.stream == stream and spread is None
        with arrays.use_stream(arrays.cuda().make("cudaStreamCreateWithFlags", 1)):
            other = resolve(x[2:])
        assert joined([parts[0], other]).address != x.address  # two streams: copied in the order of both


class _Owner:
    """Of memory that its library uses again when nobody holds it."""


def test_what_the_library_may_use_again_is_held_until_it_is_copied() -> None:
    """As JAX does, whatever is under way on others' streams."""
    go, values = threading.Event(), [np.arange(3, dtype=np.float32), np.arange(4, 9, dtype=np.float32)]
    sources = [arrays.asarray(value) for value in values]
    owners = [_Owner(), _Owner()]
    held = [weakref.ref(owner) for owner in owners]
    arrays.compute(go.wait, arrays.LEGACY)
    whole = joined([_fleeting(*pair) for pair in zip(sources, owners, strict=True)])
    owners.clear()
    assert whole.fleeting and all(reference() is not None for reference in held)
    landed = arrays.empty((8,), "float32")
    copy(whole, resolve(landed))
    go.set()
    arrays.cuda().call("cudaStreamSynchronize", arrays.LEGACY)
    assert np.array_equal(landed.numpy(), np.concatenate(values))
    del whole
    assert all(reference() is None for reference in held)


def _fleeting(x: arrays.Array, owner: object) -> Buffer:
    return Buffer(resolve(x).address, x.shape[0], int(DType.FLOAT32), 2, 0, True, x.shape, owner, arrays.LEGACY, fleeting=True)

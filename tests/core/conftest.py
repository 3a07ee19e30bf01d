"""Fixtures that several of these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from arraycomm.core.gpu import runtime
from tests.standin import arrays, build


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[arrays.Cuda]:
    """The stand-in for CUDA's runtime, with two devices."""
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", build.cudart())
    monkeypatch.setattr(runtime, "_runtime", [])
    arrays.cuda().tell("standin_reset", 2)
    yield arrays.cuda()
    arrays.cuda().tell("standin_reset", 2)

"""Everything here needs a GPU, the real libraries of CUDA and NCCL, and a framework with arrays there."""

from __future__ import annotations

import pytest

from arraycomm.core.interface import registry

REASON = registry.why_unavailable("nccl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if REASON is not None and "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=REASON))

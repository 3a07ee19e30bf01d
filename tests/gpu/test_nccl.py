"""Arrays on a GPU over every backend, on 1 and 2 ranks; these share it where there is one (frameworks.share)."""

from __future__ import annotations

import pytest

from . import parts


@pytest.mark.parametrize("part", ["operations", "facade", "staged", "mpi", "training", "sums"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_part(part: str, ranks: int) -> None:
    missing = parts.missing(part, "")
    if missing is not None:
        pytest.skip(missing)
    parts.PARTS[part](ranks, "")

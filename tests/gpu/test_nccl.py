"""The NCCL backend on a GPU, on 1 and 2 ranks: with one GPU, these share it (NCCL_MULTI_RANK_GPU_ENABLE=1, NCCL 2.30)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import frameworks, parts


@pytest.mark.parametrize("part", [parts.operations, parts.facade, parts.staged.compare], ids=["operations", "facade", "staged"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_part(part: Callable[[int, str], None], ranks: int) -> None:
    missing = frameworks.too_few(ranks)
    if missing is not None:
        pytest.skip(missing)
    part(ranks, "")

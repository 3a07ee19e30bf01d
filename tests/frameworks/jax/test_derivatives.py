"""Forward and backward derivatives."""

from __future__ import annotations

import pytest

from .conftest import Programs


@pytest.mark.parametrize("task", ["gradients", "forward", "in_loops", "pipeline", "replicated", "refused"])
def test_with_two_ranks(pair: Programs, task: str) -> None:
    pair.run(f"derivatives.{task}")


def test_with_three_ranks(three: Programs) -> None:
    three.run("derivatives.forward")

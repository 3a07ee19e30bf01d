"""jit() takes jax.jit's options; memory of donated arguments."""

from __future__ import annotations

import pytest

from .conftest import Programs


@pytest.mark.parametrize("task", ["jit_options", "donated"])
def test_jit(pair: Programs, task: str) -> None:
    pair.run(f"programs.{task}")

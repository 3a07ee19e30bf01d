"""The operations, eagerly and in programs."""

from __future__ import annotations

import pytest

from .conftest import Programs


@pytest.mark.parametrize("task", ["operations", "dtypes", "order", "order_of_programs", "control_flow", "mapped", "sharded",
                                  "trees_and_keys", "aborted"])
def test_with_two_ranks(pair: Programs, task: str) -> None:
    pair.run(f"programs.{task}")


@pytest.mark.parametrize("task", ["operations", "mixed_ways", "order"])
def test_with_three_ranks(three: Programs, task: str) -> None:
    three.run(f"programs.{task}")


def test_random_programs(pair: Programs) -> None:
    """Two. More of them, and on more ranks: by the command of nested.py."""
    for seed in (4, 8):
        pair.run("nested.programs", first=seed, last=seed + 1)

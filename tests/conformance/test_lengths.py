"""Lengths at which ways of moving and their pieces change hands."""

from __future__ import annotations

import pytest

from .worlds import World, only


@only(lambda settings: settings.size in (2, 3))
@pytest.mark.parametrize("task", ["messages", "collectives"])
def test_lengths(world: World, task: str) -> None:
    world.run(f"lengths.{task}")

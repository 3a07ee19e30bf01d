"""Shapes, strides, results in given arrays, and what is refused."""

from __future__ import annotations

import pytest

from .data import FRAMEWORKS
from .worlds import World


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "mixed"])
def test_small_shapes(world: World, framework: str) -> None:
    world.run("layouts.small", framework=framework)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("task", ["strided", "in_place", "given_out"])
def test_in_other_places(world: World, task: str, framework: str) -> None:
    world.run(f"layouts.{task}", framework=framework)


@pytest.mark.parametrize("task", ["layouts.writable_views", "layouts.jax_stays", "refusals.arguments", "refusals.outputs",
                                  "refusals.torch_bits", "refusals.fork"])
def test_tasks(world: World, task: str) -> None:
    world.run(task)

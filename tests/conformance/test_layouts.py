"""Shapes, strides, results in given arrays, and what is refused."""

from __future__ import annotations

import pytest

from .data import FRAMEWORKS
from .worlds import World


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "mixed"])
def test_small_shapes(world: World, framework: str) -> None:
    world.run("layouts.small", framework=framework)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_strided(world: World, framework: str) -> None:
    world.run("layouts.strided", framework=framework)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_in_place(world: World, framework: str) -> None:
    world.run("layouts.in_place", framework=framework)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_out(world: World, framework: str) -> None:
    world.run("layouts.given_out", framework=framework)
    world.run("layouts.writable_views")


def test_jax_arrays_do_not_change(world: World) -> None:
    world.run("layouts.jax_stays")


def test_arguments_are_refused(world: World) -> None:
    world.run("refusals.arguments")


def test_outputs_are_refused(world: World) -> None:
    world.run("refusals.outputs")


def test_lazy_bits_of_torch(world: World) -> None:
    world.run("refusals.torch_bits")


def test_fork(world: World) -> None:
    world.run("refusals.fork")

"""Lengths at which ways of moving and their pieces change hands; and programs of random calls with such lengths."""

from __future__ import annotations

import pytest

from .worlds import World, only


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--programs")))


@only(lambda settings: settings.size == (3 if settings.transport == "shm" else 2))
@pytest.mark.parametrize("task", ["messages", "collectives"])
def test_lengths(world: World, task: str) -> None:
    world.run(f"lengths.{task}")


def test_program(world: World, seed: int) -> None:
    world.run("programs.run", seed=seed)

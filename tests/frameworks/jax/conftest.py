"""Worlds whose ranks are JAX programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ...conformance.worlds import Settings, World


class Programs:
    """run("module.function") on all ranks, of a module in this folder."""

    def __init__(self, world: World) -> None:
        self._world = world

    def run(self, task: str, **parameters: Any) -> list[Any]:
        return [answer.value for answer in self._world.run(f".frameworks.jax.{task}", **parameters)]


def _programs(size: int, factory: pytest.TempPathFactory) -> Iterator[Programs]:
    world = World(Settings(size), factory.mktemp("jax"))
    yield Programs(world)
    world.close()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    yield from _programs(2, tmp_path_factory)


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    yield from _programs(3, tmp_path_factory)

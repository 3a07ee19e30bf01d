"""Worlds as fixtures. pytest orders the tests by world, so that one world lives at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .worlds import Settings, World

SIZES = (1, 2, 3, 4, 5, 8)
TRANSPORTS = ("shm", "tcp")


@pytest.fixture(scope="session", params=[Settings(size, transport) for transport in TRANSPORTS for size in SIZES],
                ids=lambda settings: f"{settings.transport}-{settings.size}")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Every size over every transport."""
    made = World(request.param, tmp_path_factory.mktemp("world"))
    yield made
    made.close()


@pytest.fixture
def special(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """A world of the test's own: special(size, transport, environ={...}, hosts=(...))."""
    made: list[World] = []

    def make(size: int, transport: str = "auto", environ: dict[str, str] | None = None,
             hosts: tuple[str, ...] = ()) -> World:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(World(Settings(size, transport, tuple((environ or {}).items()), hosts), folder))
        return made[-1]

    yield make
    for world in made:
        world.close()

"""Worlds as fixtures. pytest orders the tests by world, so that only one world is open at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .mpi import LIBRARIES
from .worlds import Settings, World

SIZES = {"shm": (1, 2, 5, 8), "tcp": (2, 5)}  # without --all-sizes, by which tests/sanitized and `tests/run --quick` take 3
EVERY_SIZE = (1, 2, 3, 4, 5, 8)
# Without --mpi-all: MPI with shared memory between ranks ("auto"), and with MPI's messages only ("tcp").
MPI_WORLDS = [("openmpi", 2, "tcp"), ("mpich", 3, "auto")]
EVERY_MPI_WORLD = list(itertools.product(LIBRARIES, (1, 2, 3, 4), ("auto", "tcp")))


def _settings(backends: tuple[str, ...], every_size: bool, every_mpi: bool) -> list[Settings]:
    made = [Settings(size, transport) for transport, sizes in SIZES.items() for size in (EVERY_SIZE if every_size else sizes)]
    if "mpi" not in backends:
        return made
    return made + [Settings(size, transport, mpi=library)
                   for library, size, transport in (EVERY_MPI_WORLD if every_mpi else MPI_WORLDS)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        backends = getattr(metafunc.module, "BACKENDS", ("socket", "mpi"))
        fits = getattr(metafunc.function, "fits", lambda settings: True)  # see worlds.only()
        made = list(filter(fits, _settings(backends, *map(metafunc.config.getoption, ("--all-sizes", "--mpi-all")))))
        assert made, f"{metafunc.function.__name__}: no world fits, so it would be skipped"
        metafunc.parametrize("world", made, indirect=True, scope="session",
                             ids=lambda settings: f"{settings.mpi}{settings.transport.removeprefix('auto')}-{settings.size}")


@pytest.fixture(scope="session")
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

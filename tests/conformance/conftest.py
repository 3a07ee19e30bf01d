"""Worlds as fixtures. pytest orders the tests by world, so that one world lives at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .mpi import LIBRARIES
from .worlds import Settings, World

SIZES = (1, 2, 3, 4, 5, 8)
TRANSPORTS = ("shm", "tcp")
MPI_SIZES = {"openmpi": (2, 4), "mpich": (3,), "impi": (2,), "abi": (2,)}  # without --mpi-all


def _settings(backends: tuple[str, ...], every_mpi: bool) -> list[Settings]:
    made = [Settings(size, transport) for transport in TRANSPORTS for size in SIZES]
    if "mpi" not in backends:
        return made
    return made + [Settings(size, mpi=library) for library in LIBRARIES
                   for size in ((1, 2, 3, 4) if every_mpi else MPI_SIZES[library])]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        backends = getattr(metafunc.module, "BACKENDS", ("socket", "mpi"))
        fits = getattr(metafunc.function, "fits", lambda settings: True)  # see worlds.only()
        made = list(filter(fits, _settings(backends, metafunc.config.getoption("--mpi-all"))))
        assert made, f"{metafunc.function.__name__}: no world fits, so it would be skipped"
        metafunc.parametrize("world", made, indirect=True, scope="session",
                             ids=lambda settings: f"{settings.mpi or settings.transport}-{settings.size}")


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

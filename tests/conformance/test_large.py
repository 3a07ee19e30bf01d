"""Arrays beyond 32 bits. They need 10 GiB of free memory for two ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from .mpi import LIBRARIES
from .worlds import Settings, World

OPERATIONS = ("moved", "more_than_2_gi_elements", "parts")


def _available() -> int:
    """Bytes of memory that can be had without swapping."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "library" in metafunc.fixturenames:
        every = metafunc.config.getoption("--mpi-all")
        metafunc.parametrize("library", LIBRARIES if every else ["mpich"])
    if "operations" in metafunc.fixturenames:
        every = metafunc.config.getoption("--all-sizes")
        metafunc.parametrize(("operations", "transport"), itertools.product(OPERATIONS, ("shm", "tcp")) if every else
                             [("more_than_2_gi_elements", "shm")])


@pytest.mark.skipif(_available() < 10 << 30, reason="needs 10 GiB of free memory")
def test_large_over_mpi(library: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Over the links, which cut everything into chunks: MPI's counts are ints."""
    if not request.config.getoption("--mpi-all"):
        pytest.skip("minutes: run by --mpi-all")
    world = World(Settings(2, "tcp", mpi=library), tmp_path)
    try:
        for task, more in (("moved", {"count": 2**32 + 9}), ("more_than_2_gi_elements", {}), ("more_than_3_gib", {})):
            world.run(f"large.{task}", **more)
    finally:
        world.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One world for all of them: its ranks keep their memory."""
    world = World(Settings(2, "shm"), tmp_path_factory.mktemp("large"))
    yield world
    world.close()


@pytest.mark.skipif(_available() < 10 << 30, reason="needs 10 GiB of free memory")
def test_large(pair: World, operations: str, transport: str) -> None:
    pair.run("large.over", limit=600, operations=operations, transport=transport)

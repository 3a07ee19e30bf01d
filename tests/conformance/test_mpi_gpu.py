"""Arrays on CUDA devices given to the MPI library itself: libraries that say that they take them, and those that only say so.
Over the stand-ins for CUDA's runtime and for such a library (tests/standin/mpi.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.standin import build

from . import mpi
from .worlds import Settings, World

SIZES = {"openmpi": (3,), "mpich": (2,), "abi": (2,)}  # one of each binary interface, without --mpi-all


def settings(library: str, size: int, how: str) -> Settings:
    found = mpi.library_file(library)
    return Settings(size, mpi=library, environ=(
        ("ARRAYCOMM_CUDART_LIBRARY", build.cudart()), ("ARRAYCOMM_MPI_LIBRARY", build.mpi(str(found))), ("STANDIN_MPI", how)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "able" in metafunc.fixturenames:
        every = metafunc.config.getoption("--mpi-all")
        chosen = dict.fromkeys(mpi.LIBRARIES, (1, 2, 3, 4)) if every else SIZES
        worlds = [(library, size) for library, sizes in chosen.items() for size in sizes]
        metafunc.parametrize("able", worlds, ids=lambda place: f"{place[0]}-{place[1]}", indirect=True)


@pytest.fixture
def able(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with closing(World(settings(*request.param, "yes"), tmp_path)) as made:
        yield made


def test_used(able: World) -> None:
    able.run("mpi_gpu.moved")
    able.run("mpi_gpu.order_of_calls")
    able.run("cuda.every_kind", framework="cuda", later=True)
    able.run("cuda.every_kind", framework="cupy")
    able.run("cuda.messages")
    able.run("cuda.split")
    able.run("cuda.captures")
    able.run("mpi_gpu.unstartable")
    if able.size > 1:
        able.run("mpi_gpu.asynchronous_first", limit=30)
        able.run("mpi_gpu.captured_first", limit=30)
        able.run("mpi_gpu.mixed", limit=30)
        able.run("mpi_gpu.stuck", limit=30)


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    library, how = request.param
    with closing(World(settings(library, 2, how), tmp_path)) as made:
        yield made


@pytest.mark.parametrize(("pair", "word"), [
    (("openmpi", "crash"), "SIGSEGV"), (("mpich", "wrong"), "with other contents")], indirect=["pair"], ids=["crash", "wrong"])
def test_refused(pair: World, word: str) -> None:
    """What would end or deceive a process that trusted it does nothing to these."""
    pair.run("mpi_gpu.refused", word=word)


@pytest.mark.parametrize("pair", [("impi", "yes")], indirect=True)
def test_one_rank_cannot(pair: World) -> None:
    pair.run("mpi_gpu.partly")

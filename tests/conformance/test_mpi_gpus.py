"""Arrays on CUDA devices over MPI libraries that take them: real ones, behind the stand-in for such a library. Over the stand-in
for CUDA's runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.standin import build

from . import mpi
from .worlds import Settings, World

APART = ("one", "two", "three")


def world(library: str, hosts: tuple[str, ...], folder: Path, **more: str) -> World:
    """A rank for each host."""
    environ = {"ARRAYCOMM_CUDART_LIBRARY": build.cudart(), "ARRAYCOMM_BACKEND": "mpi", "STANDIN_MPI": "gpus",
               "ARRAYCOMM_MPI_LIBRARY": build.mpi(str(mpi.library_file(library))), **more}
    return World(Settings(len(hosts), environ=tuple(environ.items()), hosts=hosts, mpi=library), folder)


WORLDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "openmpi, apart": ("openmpi", APART), "openmpi, two on a host": ("openmpi", ("one", "one", "two")),
    "mpich, apart": ("mpich", APART[:2]), "abi, on one host": ("abi", ("one", "one"))}


@pytest.fixture(scope="module", params=list(WORLDS.values()), ids=list(WORLDS))
def taking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    library, hosts = request.param
    with closing(world(library, hosts, tmp_path_factory.mktemp("world"))) as made:
        yield made


def test_operations(taking: World) -> None:
    taking.run("mpi_gpus.operations", direct=True)
    taking.run("mpi_gpus.reductions")
    taking.run("mpi_gpus.sizes")
    taking.run("mpi_gpus.long")


def test_in_place(taking: World) -> None:
    taking.run("mpi_gpus.in_place")
    taking.run("layouts.in_place", framework="cuda")
    taking.run("layouts.given_out", framework="cuda", others=("cuda", "cupy"))


@pytest.mark.parametrize("taking", [WORLDS["openmpi, apart"], WORLDS["mpich, apart"]], indirect=True)
def test_order(taking: World) -> None:
    for task in ("order_of_calls", "between", "captures", "forgotten", "messages", "split", "other_device"):
        taking.run(f"cuda.{task}")


def test_messages(taking: World) -> None:
    taking.run("mpi_gpus.messages", direct=True)
    for task in ("short_messages", "host_messages", "any_source", "ordered", "groups_that_close"):
        taking.run(f"mpi_gpus.{task}")
    taking.run("messages.ring", framework="cuda")


def test_messages_that_fail(taking: World) -> None:
    taking.run("mpi_gpus.failed_messages")


def test_every_kind(taking: World) -> None:
    taking.run("cuda.every_kind", framework="frozen", counts=(1, 100), later=True)


def test_what_differs(taking: World) -> None:
    taking.run("mpi_gpus.differ")


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_late(library: str, tmp_path: Path) -> None:
    with closing(world(library, APART[:2], tmp_path)) as made:
        made.run("mpi_gpus.late")


@pytest.mark.parametrize(("wanted", "says", "direct"), [("0", "gpus", False), ("1", "", True), ("", "", False)])
def test_who_decides(wanted: str, says: str, direct: bool, tmp_path: Path) -> None:
    """The program, and otherwise the library."""
    with closing(world("openmpi", APART[:2], tmp_path, ARRAYCOMM_MPI_GPU=wanted, STANDIN_MPI=says)) as made:
        made.run("mpi_gpus.operations", direct=direct)
        made.run("mpi_gpus.messages", direct=direct)

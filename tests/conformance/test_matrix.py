"""Every operation x dtype x reduction x framework x world size x transport, against NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest

from .data import DTYPES, FRAMEWORKS
from .worlds import World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "framework" in metafunc.fixturenames:
        metafunc.parametrize("framework", metafunc.config.getoption("--frameworks") or [*FRAMEWORKS, "mixed"])


def test_reductions(world: World, framework: str) -> None:
    world.run("reductions.matrix", framework=framework, dtypes=DTYPES, exact=world.settings.transport == "shm")


def test_movement(world: World, framework: str) -> None:
    world.run("movement.matrix", framework=framework, dtypes=DTYPES)


def test_rough_numbers(world: World) -> None:
    """Sums that round: the bits of rank order over shared memory; over TCP as close as any order is."""
    exact = world.settings.transport == "shm"
    world.run("reductions.matrix", framework="numpy", dtypes=DTYPES, shape=(4, 3), rough=True, exact=exact)


def test_special_values(world: World) -> None:
    world.run("reductions.special_values")
    world.run("reductions.wrapping")


def test_scans_functions_and_locations(world: World) -> None:
    world.run("reductions.scans_elsewhere")
    for framework in FRAMEWORKS if world.size == 2 and not world.settings.hosts else ("numpy",):
        world.run("reductions.functions_and_locations", framework=framework)


def test_sizes(world: World) -> None:
    """Around the units of the engine: vectors, lines, pages, staging pieces."""
    counts = [0, 1, 2, 5, 31, 64, 65, 1023, 1024, 1025, 4096, 4097, 16_385, 70_001]
    exact = world.settings.transport == "shm"
    world.run("reductions.sizes", counts=counts, exact=exact)
    world.run("movement.sizes", counts=counts, dtypes=("int8", "float32"))


def test_roots(world: World) -> None:
    world.run("movement.roots")


def test_uneven(world: World, framework: str) -> None:
    world.run("movement.uneven", framework=framework, rows=[[1], [3, 0], [0, 0, 5], [2, 1], [0], [1000, 1, 0]])


def test_objects(world: World) -> None:
    world.run("objects.everywhere")


def test_uneven_reduce_scatter(world: World) -> None:
    world.run("reductions.uneven_scatter", rows=[[1], [3, 0], [0, 0, 5], [2, 1], [0], [3000, 1, 0]],
              exact=world.settings.transport == "shm")


def test_lists(world: World, framework: str) -> None:
    world.run("movement.lists", framework=framework)


def test_barrier(world: World, tmp_path: Path) -> None:
    world.run("movement.barriers", folder=str(tmp_path))


def test_facts(world: World) -> None:
    world.run("groups.facts", size=world.size)

"""The MPI library's own collectives, as an algorithm ("library"); the rest of the suite has the engine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from .mpi import LIBRARIES
from .worlds import Settings, World

_BLOCKS, _WHOLE = 200_001, 600_000  # elements of 8 bytes: more than a segment of each of three blocks, and of a whole array


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("library", LIBRARIES if metafunc.config.getoption("--mpi-all") else ["mpich", "openmpi"])


def test_library(library: str, tmp_path: Path) -> None:
    """Links between two ranks, and three that share memory, whose calls are compared over it."""
    size, transport = (2, "tcp") if library == "openmpi" else (3, "auto")
    world = World(Settings(size, transport, (("ARRAYCOMM_ALGORITHM", "library"),), mpi=library), tmp_path)
    try:
        world.run("reductions.matrix", framework="numpy", dtypes=("bool", "int8", "uint64", "float8_e5m2", "bfloat16", "float64",
                                                                  "complex64"), exact=False)
        world.run("movement.matrix", framework="numpy", dtypes=("bool", "bfloat16", "complex128"))
        world.run("movement.sizes", counts=(0, 1, _BLOCKS), dtypes=("float64",))
        world.run("algorithms.long_reductions", count=_WHOLE)
        world.run("movement.uneven", framework="numpy", rows=[[1, 0], [3, 2, 7], [0, 0, 5]])
        world.run("reductions.uneven_scatter", rows=[[1000, 0], [3, 2000, 1]], exact=False)
        for task in ("movement.roots", "movement.barriers", "movement.long_uneven", "reductions.scans_elsewhere",
                     "reductions.special_values", "reductions.wrapping", "asynchrony.every_kind", "asynchrony.several_groups",
                     "groups.subsets", "groups.outsiders_and_keys", "mismatches.matrix", "mismatches.late"):
            world.run(task)
    finally:
        world.close()


def test_without_comparison(library: str, tmp_path: Path) -> None:
    world = World(Settings(3, "tcp", (("ARRAYCOMM_ALGORITHM", "library"), ("ARRAYCOMM_CHECK", "0")), mpi=library), tmp_path)
    try:
        world.run("asynchrony.in_flight", framework="numpy")
        world.run("asynchrony.threads")
    finally:
        world.close()

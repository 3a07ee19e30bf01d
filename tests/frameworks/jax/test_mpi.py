"""Programs over MPI: on copies of their memory, which MPI may keep using after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...conformance.worlds import Settings, World


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_programs(library: str, tmp_path: Path) -> None:
    world = World(Settings(2, mpi=library), tmp_path)
    try:
        for task in ("operations", "order", "donated", "aborted"):
            world.run(f".frameworks.jax.programs.{task}")
    finally:
        world.close()

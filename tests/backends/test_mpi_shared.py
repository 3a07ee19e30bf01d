"""Collectives over MPI through memory that the ranks of one host share: engine/mpi_seats.h."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.backends.mpi_shared_rank import LENGTHS
from tests.backends.test_mpi import lines, run
from tests.conformance import mpi
from tests.standin import build

PROGRAM = str(Path(__file__).with_name("mpi_shared_rank.py"))


@pytest.mark.parametrize(("library", "size"), [("openmpi", 2), ("mpich", 3), ("impi", 4)])
def test_every_operation_of_every_length(library: str, size: int) -> None:
    printed = run(library, size, PROGRAM, "matrix")
    for rank in range(size):
        said = lines(printed, rank)
        assert len(said) == len(LENGTHS) and set(said) == {"wrong []"}, printed


@pytest.mark.parametrize("library", list(mpi.WHEELS))
def test_contents_change_hands(library: str) -> None:
    printed = run(library, 2, PROGRAM, "change hands")
    expected = ["4096 [True, True, True, True]", "262144 [True, True, True, True]", "524288 [True, True, True, True]"]
    assert [lines(printed, rank) for rank in range(2)] == [expected] * 2, printed


@pytest.mark.parametrize(("library", "size"), [("openmpi", 2), ("mpich", 3), ("impi", 4)])
def test_several_at_a_time(library: str, size: int) -> None:
    printed = run(library, size, PROGRAM, "under way")
    assert [lines(printed, rank) for rank in range(size)] == [["wrong []"]] * size, printed


@pytest.mark.parametrize(("library", "size"), [("openmpi", 2), ("mpich", 3), ("impi", 4)])
def test_calls_that_differ(library: str, size: int) -> None:
    printed = run(library, size, PROGRAM, "differ")
    assert [lines(printed, rank) for rank in range(size)] == [["all found"]] * size, printed


def test_a_rank_that_dies_amid_pieces() -> None:
    printed = run("openmpi", 3, PROGRAM, "dies", options=("--with-ft", "ulfm"))
    assert [lines(printed, rank) for rank in range(3)] == [["PeerLost (1,)"], [], ["PeerLost (1,)"]], printed


@pytest.mark.parametrize(("library", "size"), [("openmpi", 2), ("mpich", 3), ("impi", 2)])
def test_a_rank_that_closes(library: str, size: int) -> None:
    printed = run(library, size, PROGRAM, "closes")
    assert [lines(printed, rank) for rank in range(size)] == [["PeerLost (1,)"] * (rank != 1) for rank in range(size)], printed


def test_what_has_ended_well_stays_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    printed = run("mpich", 2, PROGRAM, "ends well", environ={"ARRAYCOMM_MPI_LIBRARY": build.mpi(str(mpi.library_file("mpich"))),
                                                             "STANDIN_MPI_GATE": str(tmp_path / "gate")})
    assert [lines(printed, rank) for rank in range(2)] == [["wrong []"]] * 2, printed


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_a_rank_that_writes_anything(library: str, request: pytest.FixtureRequest) -> None:
    """Neither lengths nor places come from the others."""
    if not request.config.getoption("--mpi-all"):
        pytest.skip("a minute: run by --mpi-all")
    printed = run(library, 2, PROGRAM, "scribbles")
    assert [lines(printed, rank) for rank in range(2)] == [["alive, its neighbours {7.0}"]] * 2, printed

"""Messages over MPI of ranks that share memory, under each library's mpirun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.test_mpi import lines, run, segments

__all__ = ["segments"]
PROGRAM = str(Path(__file__).with_name("mpi_lanes_rank.py"))
CELLS = str(Path(__file__).with_name("mpi_cells_rank.py"))
# What messages share memory for does not depend on the library: one of each binary interface.
EACH = pytest.mark.parametrize("library", ["openmpi", "mpich"])


@EACH
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_order(library: str, transport: str) -> None:
    printed = run(library, 3, PROGRAM, "order", environ={"ARRAYCOMM_TRANSPORT": transport})
    assert [lines(printed, rank) for rank in range(3)] == [["wrong 0, from each {20}"] * 3] * 3, printed


@pytest.mark.parametrize(("library", "size"), [("openmpi", 3), ("mpich", 2)])
def test_more_than_a_lane_holds(library: str, size: int) -> None:
    printed = run(library, size, PROGRAM, "many")
    assert lines(printed, 0) == ["wrong 0"], printed


@EACH
@pytest.mark.parametrize("case", ["fills", "fits"])
def test_as_much_as_a_lane_holds(library: str, case: str) -> None:
    printed = run(library, 2, PROGRAM, case)
    assert [lines(printed, rank) for rank in range(2)] == [["wrong 0"]] * 2, printed


@pytest.mark.parametrize("size", [2, 3])
def test_memory_that_only_its_owner_reads(size: int) -> None:
    """It comes by MPI, of a library that does not read it itself."""
    printed = run("openmpi", size, PROGRAM, "unreadable", environ={"OMPI_MCA_smsc": "^cma"})
    assert [lines(printed, rank) for rank in range(size)] == [["right True"] * 3] * size, printed


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_giving_up_while_another_reads(library: str) -> None:
    printed = run(library, 2, PROGRAM, "gives up")
    assert [lines(printed, rank) for rank in range(2)] == [["wrong 0, gave up True"]] * 2, printed


@pytest.mark.parametrize("library", ["openmpi", "impi"])
def test_a_receiver_that_gives_up(library: str) -> None:
    printed = run(library, 2, PROGRAM, "receiver gives up")
    assert [lines(printed, rank) for rank in range(2)] == [["wrong 0, gave up True"]] * 2, printed


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_abort_with_messages_under_way(library: str) -> None:
    printed = run(library, 2, PROGRAM, "aborts")
    assert [lines(printed, rank) for rank in range(2)] == [["mapped 0"]] * 2, printed


@EACH
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_fork_with_messages_under_way(library: str, transport: str) -> None:
    printed = run(library, 2, PROGRAM, "forks", environ={"ARRAYCOMM_TRANSPORT": transport})
    assert [lines(printed, rank) for rank in range(2)] == [["child 0 0, right True"]] * 2, printed


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_messages_of_another_length(transport: str) -> None:
    printed = run("mpich", 2, PROGRAM, "refuses", environ={"ARRAYCOMM_TRANSPORT": transport})
    assert [lines(printed, rank) for rank in range(2)] == [["refused 0"], ["refused 1212"]], printed


def test_answers_go_where_questions_lay() -> None:
    printed = run("mpich", 2, CELLS, "answers")
    assert [lines(printed, rank) for rank in range(2)] == [["told []"]] * 2, printed


@pytest.mark.parametrize(("case", "counts"), [
    ("streams", ["(0, [1, 1]), (0, [1, 1])"]), ("waits", ["(0, [2, 3]), (0, [2, 3])"]),
    ("refused", ["(0, [1, 2])" + 3 * ", (0, [1, 2])"])])
def test_messages_in_cells(case: str, counts: list[str]) -> None:
    printed = run("mpich", 2, CELLS, case)
    assert [lines(printed, rank) for rank in range(2)] == [[f"[{one}]" for one in counts]] * 2, printed


def test_messages_both_ways_at_once() -> None:
    printed = run("impi", 2, CELLS, "both ways")
    assert [lines(printed, rank) for rank in range(2)] == [["wrong 0, in cells True"]] * 2, printed


def test_killed_amid_a_long_message() -> None:
    printed = run("openmpi", 3, PROGRAM, "killed", options=("--with-ft", "ulfm"))
    for rank in (0, 2):
        assert [line.partition(" rank ")[0] for line in lines(printed, rank)] == ["PeerLost (1,)"], printed


@pytest.mark.parametrize("library", ["openmpi", "impi"])
def test_close_with_messages_under_way(library: str) -> None:
    printed = run(library, 2, PROGRAM, "closes")
    (sender,), (receiver,) = lines(printed, 0), lines(printed, 1)
    assert sender.startswith("mapped 0, ") and "closed" in sender, printed
    assert receiver.startswith("mapped 0, True ") and "rank 0 was lost: it has closed the group" in receiver, printed


def test_heads_that_cannot_be() -> None:
    """Of a peer that writes what it likes."""
    printed = run("mpich", 2, PROGRAM, "hostile")
    found = lines(printed, 0)
    assert len(found) == 17, printed
    told = "rank 1 wrote what cannot be into memory that it shares with rank 0"
    assert all("DistNetworkError" in line and told in line for line in found), printed

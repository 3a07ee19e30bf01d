"""Launchers by their variables: those that are known, and ranks of others, which are no worlds of one without a word."""

from __future__ import annotations

import pytest

from arraycomm.core.bootstrap.environment import detect, unknown_rank
from arraycomm.core.bootstrap.rendezvous import rendezvous

from ..logged import logged


def test_pals() -> None:
    environ = {"PALS_RANKID": "5", "PMI_RANK": "5", "PMI_SIZE": "8", "PALS_LOCAL_RANKID": "1", "PMI_LOCAL_SIZE": "4",
               "PALS_APID": "a-b", "PALS_NODEID": "1", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
    place = detect(environ)
    assert place is not None and place[1:] == (5, 8, 1, 4, "n0", 29500, "a-b") and not place.local
    alone = detect({"PALS_RANKID": "1", "PMI_SIZE": "2", "PMI_LOCAL_SIZE": "2"})
    assert alone is not None and alone.local


def test_flux() -> None:
    environ = {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "2",
               "FLUX_JOB_ID": "f123"}
    place = detect(environ)
    assert place is not None and place[1:4] == (3, 4, 1) and not place.local and place.job == "flux f123"
    assert place.port == detect({**environ, "FLUX_TASK_RANK": "0"}).port  # type: ignore[union-attr]
    alone = detect({**environ, "FLUX_JOB_NNODES": "1"})
    assert alone is not None and alone.local


@pytest.mark.parametrize("environ, rank", [
    ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2", "RANK": "1", "WORLD_SIZE": "3"}, 1),  # the user's word first
    ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PALS_RANKID": "0"}, 1),
    ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"}, 1)])
def test_one_launcher_inside_another(environ: dict[str, str], rank: int) -> None:
    place = detect(environ)
    assert place is not None and place.rank == rank


@pytest.mark.parametrize("variable", ["PMIX_RANK", "PMI_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "MV2_COMM_WORLD_RANK",
                                      "ALPS_APP_PE"])
def test_ranks_of_unknown_launchers(variable: str) -> None:
    with logged() as lines:
        meeting = rendezvous(environ={variable: "3"})
    assert meeting.size == 1
    meeting.close()
    (line,) = lines
    assert f"{variable}=3 is set, by a launcher that arraycomm does not know" in line and "WORLD_SIZE" in line


@pytest.mark.parametrize("environ", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, {"PMI_RANK": ""}, {"PMIX_RANK": "x"},
                                     {"RANK": "0", "WORLD_SIZE": "1", "PMI_RANK": "3"}])
def test_no_rank_is_told(environ: dict[str, str]) -> None:
    """Plain processes, batch scripts, and worlds of one that somebody meant."""
    with logged() as lines:
        rendezvous(environ=environ).close()
    assert not lines and ("RANK" in environ or not unknown_rank(environ))

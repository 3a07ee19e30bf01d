"""Detects rank and size from the launcher's environment variables: our launcher, torchrun, mpirun, srun, Kubernetes."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import NamedTuple

from ..base import settings
from .address import packed, port_range

Environ = Mapping[str, str]

# Where this package was imported from. `python -m` searches the working directory first, which may have another arraycomm.
IMPORTED_FROM = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LAST_PORT = 65535
_KUBERNETES_PORT = 29500  # a pod has its own network namespace
# Of launchers that are not known here, or whose other variables are missing. Not Slurm's: batch scripts have it, too.
_RANKS = ("PMIX_RANK", "PMI_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "MV2_COMM_WORLD_RANK", "MPI_RANKID", "JSM_NAMESPACE_RANK",
          "ALPS_APP_PE", "MPT_MPI_RANK", "OMPI_COMM_WORLD_RANK")
_DERIVED_PORTS = range(15000, 30000)  # below the kernel's ephemeral ports, above the common ports of services


class Place(NamedTuple):
    """A rank, and the address of its rendezvous. None: not in this environment."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    host: str | None = None
    port: int | None = None
    job: str = ""  # the job's name, unique to this job

    @property
    def local(self) -> bool:
        """Whether all ranks are known to be on this host."""
        return self.local_size == self.size


def detect(environ: Environ, rank: int | None = None, size: int | None = None) -> Place | None:
    """The Place from the first known launcher's environment; None for a plain process.

    RANK and WORLD_SIZE come first, because a user sets them on purpose. If only one of the two is set, the other
    may still come from a scheduler, or from the program's arguments. Raises ValueError that names a missing or
    malformed variable and what to do.
    """
    for find in (_variables, _open_mpi, _hydra, _pals, _flux, _slurm, _kubernetes):
        place = find(environ)
        if place is not None:
            return with_master(place, environ)
    told = {name: str(value) for name, value in (("RANK", rank), ("WORLD_SIZE", size)) if value is not None}
    place = _variables({**environ, **told}) if told.keys() != {"RANK", "WORLD_SIZE"} else None
    if place is not None:
        return with_master(place, environ)
    for present, absent in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if present in environ and absent not in told:
            raise ValueError(f"{present} is set but {absent} is not: set both (and MASTER_ADDR, MASTER_PORT), unset "
                             "both for a world of one process, or start with arraycomm-run")
    return None


def hosted(environ: Environ) -> bool:
    """Whether our launcher serves the store. False if the program has since changed MASTER_ADDR or MASTER_PORT."""
    word, _, place = environ.get("ARRAYCOMM_STORE", "").partition("@")
    return word == "launcher" and place in ("", f"{environ.get('MASTER_ADDR')}:{environ.get('MASTER_PORT')}")


def hosted_by_torch(environ: Environ) -> bool:
    """Whether torchrun's agent serves the store. Our launchers set only the first variable, for torch; torchrun sets both."""
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true" and not hosted(environ)
    return agent and ("TORCHELASTIC_ERROR_FILE" in environ or "ARRAYCOMM_STORE" not in environ)


def _variables(environ: Environ) -> Place | None:
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    return Place("environment", number(environ, "RANK"), number(environ, "WORLD_SIZE"), _maybe(environ, "LOCAL_RANK"),
                 _maybe(environ, "LOCAL_WORLD_SIZE"), job=environ.get("TORCHELASTIC_RUN_ID", ""))


def _open_mpi(environ: Environ) -> Place | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", "")
    return Place("mpirun (Open MPI)", number(environ, "OMPI_COMM_WORLD_RANK"), number(environ, "OMPI_COMM_WORLD_SIZE"),
                 _maybe(environ, "OMPI_COMM_WORLD_LOCAL_RANK"), _maybe(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"), job=job)


def _hydra(environ: Environ) -> Place | None:
    """Hydra: mpirun of MPICH and its derivatives. PMI_RANK alone is not enough: srun may set it too."""
    if not {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"} <= environ.keys():
        return None
    return Place("mpirun (MPICH)", number(environ, "PMI_RANK"), number(environ, "PMI_SIZE"),
                 _maybe(environ, "MPI_LOCALRANKID"), _maybe(environ, "MPI_LOCALNRANKS"))


def _pals(environ: Environ) -> Place | None:
    """HPE's mpiexec (Cray systems). The number of ranks is in the variables that it sets for PMI."""
    if not {"PALS_RANKID", "PMI_SIZE"} <= environ.keys():
        return None
    return Place("mpiexec (PALS)", number(environ, "PALS_RANKID"), number(environ, "PMI_SIZE"),
                 _maybe(environ, "PALS_LOCAL_RANKID"), _maybe(environ, "PMI_LOCAL_SIZE"), job=environ.get("PALS_APID", ""))


def _flux(environ: Environ) -> Place | None:
    if not {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"} <= environ.keys():
        return None
    size, job = number(environ, "FLUX_JOB_SIZE"), f"flux {environ.get('FLUX_JOB_ID', '')}"
    one_node = environ.get("FLUX_JOB_NNODES") == "1"
    return Place("flux run", number(environ, "FLUX_TASK_RANK"), size, _maybe(environ, "FLUX_TASK_LOCAL_ID"),
                 size if one_node else None, None, derived_port(job), job)


def unknown_rank(environ: Environ) -> str:
    """"VARIABLE=value" of an unsupported launcher that seems to set a rank, if detect() finds none; else ""."""
    return next((f"{name}={environ[name]}" for name in _RANKS if environ.get(name, "").isdecimal()), "")


def _slurm(environ: Environ) -> Place | None:
    # A batch script has SLURM_PROCID and SLURM_NTASKS too, but is not a rank: only srun sets SLURM_STEP_NUM_TASKS.
    if "SLURM_PROCID" not in environ or "SLURM_STEP_NUM_TASKS" not in environ:
        return None
    size = number(environ, "SLURM_STEP_NUM_TASKS")
    job = f"slurm {environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    one_node = environ.get("SLURM_STEP_NUM_NODES") == "1"
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    return Place("srun", number(environ, "SLURM_PROCID"), size, _maybe(environ, "SLURM_LOCALID"),
                 size if one_node else None, first_host(nodes) if nodes else None, derived_port(job), job)


def _kubernetes(environ: Environ) -> Place | None:
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    if "WORLD_SIZE" not in environ:
        raise ValueError("this is a pod of a Kubernetes indexed job (JOB_COMPLETION_INDEX is set), but WORLD_SIZE is "
                         "not: set it to the job's completions in the pod template")
    return Place("a Kubernetes indexed job", number(environ, "JOB_COMPLETION_INDEX"), number(environ, "WORLD_SIZE"),
                 host=None if "MASTER_ADDR" in environ else _first_pod(), port=_KUBERNETES_PORT)


def _first_pod() -> str | None:
    """The DNS name of the pod with index 0, "job-0.service.namespace..."; None without a headless service."""
    pod, _, rest = socket.getfqdn().partition(".")
    return f"{pod.rpartition('-')[0]}-0.{rest}" if rest and "-" in pod else None


def with_master(place: Place, environ: Environ) -> Place:
    """Overrides the scheduler's address by MASTER_ADDR and MASTER_PORT. ValueError if they are no valid host or port."""
    host, port = environ.get("MASTER_ADDR"), _maybe(environ, "MASTER_PORT")
    if host and not _may_be_host(host):
        raise ValueError(f"MASTER_ADDR must be the name or the address of rank 0's host, and nothing else, got {host!r}")
    least = 0 if place.size == 1 else 1  # a world of one needs no rendezvous, and torch accepts any port then
    if port is not None and not least <= port <= _LAST_PORT:
        raise ValueError(f"MASTER_PORT must be a port of rank 0's host, {least} to {_LAST_PORT}, got {port}")
    return place._replace(host=host or place.host, port=place.port if port is None else port)


def _may_be_host(text: str) -> bool:
    """Checks the syntax: no URL, no host with a port. Whether the name exists is left to the resolver; that may change."""
    with contextlib.suppress(ValueError):
        return bool(packed(text))
    return not any(character in ":/[]@" or character.isspace() for character in text)


def number(environ: Environ, name: str) -> int:
    try:
        return int(environ[name])
    except KeyError:
        raise ValueError(f"{name} is not set: set it, or start with arraycomm-run") from None
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {environ[name]!r}") from None


def _maybe(environ: Environ, name: str) -> int | None:
    return number(environ, name) if environ.get(name) else None


def first_host(nodelist: str) -> str:
    """The first host of Slurm's list: "n3" of "n[3-5,7]x,m1" is "n3x"; leading zeros stay. ValueError for others."""
    import re  # lazy, like zlib below: only for Slurm

    match = re.match(r"([^,\[]*)((?:\[[^\]]*\][^,\[]*)*)(?:,|$)", nodelist)
    if match is None or not match[0].strip(","):
        raise ValueError(f"cannot read the list of nodes {nodelist!r}; set MASTER_ADDR to the host of rank 0")
    return match[1] + re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", match[2])


def derived_port(job: str) -> int:
    """A port derived from the job's name, without communication. Two jobs may collide; then the second gets an error."""
    import zlib

    ports = port_range() if settings.get("ARRAYCOMM_PORT_RANGE") else _DERIVED_PORTS
    return ports[zlib.crc32(job.encode()) % len(ports)]

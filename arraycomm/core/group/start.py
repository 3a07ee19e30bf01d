"""init(): makes the group of the world from the environment or arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..base import settings
from ..base.log import log
from ..interface import registry
from ..interface.backend import Backend, Communicator
from . import arguments
from .group import Group
from .routes import Route, Routes

if TYPE_CHECKING:
    from ..bootstrap.rendezvous import Rendezvous
    from ..bootstrap.store.base import Store

# The bootstrap is loaded lazily, in init(): it would take half the time of `import arraycomm`.

_INFO = 20  # logging.INFO


def from_mpi4py(comm: Any, *, timeout: float | timedelta | None = None, name: str = "mpi4py") -> Group:
    """A group of the ranks of an mpi4py communicator, all of which call it. The communicator is duplicated and stays yours.

    - Blocks: until all ranks of the communicator have called it.
    - Timeout: the default of the group's operations, as in init(); not of this call, which MPI carries out.
    - Errors: TypeError for what is no communicator, ValueError for a null or inter-communicator, DistBackendError where MPI runs
      with less than MPI_THREAD_MULTIPLE.

    Examples:
        >>> def program():                                   # under mpirun
        ...     from mpi4py import MPI
        ...     with arraycomm.from_mpi4py(MPI.COMM_WORLD) as group:
        ...         return group.all_reduce(np.ones(2))
    """
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not isinstance(comm, module.Comm):
        raise TypeError(f"from_mpi4py needs an mpi4py communicator, got {type(comm).__name__}")
    if comm == module.COMM_NULL or comm.Is_inter():
        raise ValueError("from_mpi4py needs an intra-communicator that is not MPI.COMM_NULL")
    from ..bootstrap.environment import detect

    place = detect(os.environ)
    if module.COMM_WORLD.Get_size() == 1 and place is not None and place.size > 1:
        log().warning("MPI has started this process alone, as a world of one rank, where %s has started %d: use mpirun "
                      "with from_mpi4py(), or arraycomm.init()", place.launcher, place.size)
    seconds, backend = seconds_of(timeout), registry.get("mpi")
    mpi: Any = backend  # only the MPI backend can wrap
    return Group(Routes([Route(backend, mpi.wrap(module._addressof(comm), name=name, timeout=seconds))], seconds), seconds)


def seconds_of(timeout: float | timedelta | None) -> float:
    """A caller's timeout in seconds; None: ARRAYCOMM_TIMEOUT. Raises TypeError and ValueError."""
    if timeout is None:
        timeout = settings.get_number("ARRAYCOMM_TIMEOUT")
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    return arguments.group_seconds(timeout)


def init(init_method: str | None = None, *, rank: int | None = None, world_size: int | None = None,
         store: Store | None = None, backend: str | None = None, timeout: float | timedelta | None = None,
         name: str = "world") -> Group:
    """The group of all ranks. Every rank calls it.

    With backend "mpi" the ranks are MPI_COMM_WORLD's, and nothing else needs to be said (docs/guide/mpi.md).

    Args:
        init_method: "env://" (default: what the launcher, torchrun, mpirun, srun or a Kubernetes indexed job set),
            "tcp://host:port" or "file:///path"; or give `store`. Without any of these the process is the only rank.
        rank: if the environment does not give it.
        world_size: if the environment does not give it.
        store: through which the ranks meet, instead of init_method.
        backend: "socket", "mpi" or "nccl", or one for each type of device, "cpu:socket,cuda:nccl"; None takes
            ARRAYCOMM_BACKEND, else the first one that is available.
        timeout: seconds (or a timedelta), for this call and as the default of the group's operations; None takes
            ARRAYCOMM_TIMEOUT (1800).
        name: distinguishes worlds that one process has at the same time.

    - Blocks: until all ranks have come.
    - Timeout: DistStoreError, which names the ranks that did not come.
    - Errors: ValueError for arguments that contradict each other or are missing, DistStoreError when the store is lost, PeerLost
      when another rank fails meanwhile, DistNetworkError and AuthFailed from connecting, DistBackendError when the backend
      cannot be used.

    Examples:
        >>> with arraycomm.init() as group:                  # under a launcher: all of its ranks
        ...     group.all_reduce(np.ones(2)).tolist()
        [1.0, 1.0]
    """
    seconds = seconds_of(timeout)
    asked = backend or settings.get("ARRAYCOMM_BACKEND") or registry.DEFAULT
    chosen = registry.choose(asked)
    told = (init_method, rank, world_size, store) != (None,) * 4
    meeting = None if told or len(chosen) > 1 else next(iter(chosen)).meet(seconds, name)
    if meeting is None:
        from ..bootstrap.rendezvous import rendezvous

        meeting = rendezvous(init_method, rank=rank, world_size=world_size, store=store,
                             timeout=timedelta(seconds=seconds), name=name,
                             backend=registry.spelled({backend.name: types for backend, types in chosen.items()}))
    return open_group(meeting, chosen, seconds, name)


def open_group(meeting: Rendezvous, chosen: Mapping[Backend, frozenset[int]], timeout: float, name: str) -> Group:
    """Makes the group after the rendezvous; collective; the second part of init(). chosen: from registry.choose().
    timeout: seconds.

    Closes the rendezvous on failure, and with the group.
    """
    routes: list[Route] = []
    if "numpy" in sys.modules:
        from ..arrays import arrays  # noqa: F401 - the first result would import it, when no descriptor may be left
    try:
        for backend, types in chosen.items():
            where, label = (meeting, name) if not routes else (
                meeting.part(range(meeting.size), f"backend {backend.name}"), f"{name} {backend.name}")
            routes.append(Route(backend, _open(where, backend, timeout, label), types))
    except BaseException as error:
        for route in routes:
            route.communicator.close(type(error).__name__)
        meeting.close()
        raise
    group = Group(Routes(routes, timeout), timeout, on_close=meeting.close)
    began(group, routes)
    return group


def began(group: Group, routes: Sequence[Route]) -> None:
    """The steps after the opening of a world, on all ranks."""
    _announce(group, routes)
    for variable, likely in settings.unknown().items() if not group.rank else ():
        log().warning("%s is no setting of arraycomm and changes nothing%s", variable, f"; is {likely} meant?" if likely else "")
    if folder := settings.get("ARRAYCOMM_TRACE"):
        from ..diagnostics import trace  # lazy: only for tracing; it loads json, re and pathlib

        try:
            trace.begin(group, folder)
        except BaseException as error:
            group.close(type(error).__name__)
            raise


def _announce(group: Group, routes: Sequence[Route]) -> None:
    """One line at INFO of the logger "arraycomm". Only if `logging` is loaded already: loading it takes as long as init()."""
    logger = getattr(sys.modules.get("logging"), "getLogger", lambda _: None)("arraycomm")
    if logger is not None and logger.isEnabledFor(_INFO):
        about = [getattr(route.communicator, "about", "") for route in routes]  # a user's backend may lack it
        logger.info("group %r is open: rank %d of %d, %s", group.name, group.rank, group.size,
                    ", ".join(filter(None, [f"backend {group.backend}", *about])))


def _open(meeting: Rendezvous, backend: Backend, timeout: float, name: str) -> Communicator:
    from ..bootstrap.gathering import Gathering

    gathering = Gathering(meeting.store, meeting.rank, meeting.size, meeting.secret)
    try:
        settings.check()  # here, because errors are reported to the other ranks
        communicator = backend.open(meeting, name=name, timeout=timeout)
    except BaseException as error:
        gathering.fail(error)
        raise
    gathering.leave()
    return communicator

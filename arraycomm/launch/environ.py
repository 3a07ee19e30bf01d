"""The environment variables of a rank (rank, size, rendezvous address), and inherited state that a launcher must not pass on: an
enclosing job's variables, an ignored SIGCHLD, blocked signals."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A rank's position in the world, and the world's store."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    address: str
    port: int

    def variables(self, secret_fd: int | None) -> dict[str, str]:
        """torchrun's variables, and arraycomm's: the store's address and the inherited descriptor that holds the secret."""
        variables = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "NODE_RANK": str(self.node_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "ARRAYCOMM_STORE": f"launcher@{self.address}:{self.port}",
        }
        if secret_fd is not None:
            variables["ARRAYCOMM_SECRET_FD"] = str(secret_fd)
        return variables



def enough_for_xla(environ: Mapping[str, str], bound: bool = False) -> dict[str, str]:
    """Two threads for XLA's programs if JAX would use one: a program that waits for its peers in the only thread blocks its own
    callbacks (jax.debug.callback). JAX reads PJRT_NPROC, else NPROC, else uses the number of CPUs in its affinity.
    bound: that will be one."""
    try:
        threads = environ.get("NPROC") or str(1 if bound else len(os.sched_getaffinity(0)))
    except OSError:  # a sandbox may forbid the system call
        threads = str(os.cpu_count())
    return {"PJRT_NPROC": "2"} if threads == "1" and not environ.get("PJRT_NPROC") else {}


_SECRETS = ("ARRAYCOMM_SECRET", "ARRAYCOMM_SECRET_FILE", "ARRAYCOMM_SECRET_FD")  # the first would be visible in /proc/PID/environ
# Variables that another launcher (torchrun, mpirun) has set for its rank, if this launcher runs inside such a rank.
_ANOTHER_JOBS = ("TORCHELASTIC_", "GROUP_WORLD_SIZE", "ROLE_", "PMI_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD_")


def inherited(given: Mapping[str, str]) -> dict[str, str]:
    """The environment for ranks: without the secret, which a descriptor holds, and without an enclosing job's variables."""
    return {name: value for name, value in given.items()
            if name not in _SECRETS and not name.startswith(_ANOTHER_JOBS)}


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """Resets SIGCHLD and unblocks all signals; restores both at the end. If SIGCHLD is ignored, the kernel keeps no exit code,
    and each rank would seem to have succeeded; the ranks would inherit blocked signals. Other ignored signals stay ignored:
    SIGHUP under nohup, SIGINT for a shell's background jobs.
    """
    ignored = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    main = threading.current_thread() is threading.main_thread()
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ()) if main else ()  # other threads may wait for signals
    try:
        if ignored:
            _set_children(signal.SIG_DFL)
        yield
    finally:
        if ignored:
            _set_children(signal.SIG_IGN)
        if main:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _set_children(handler: signal.Handlers) -> None:
    """Sets SIGCHLD's handler; through C in other threads than the main one, where signal.signal() is not allowed."""
    import ctypes  # imported on demand: only other threads need it

    ctypes.pythonapi.PyOS_setsig.argtypes = (ctypes.c_int, ctypes.c_void_p)
    ctypes.pythonapi.PyOS_setsig.restype = ctypes.c_void_p
    ctypes.pythonapi.PyOS_setsig(signal.SIGCHLD, int(handler))

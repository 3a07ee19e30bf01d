"""The environment by which a rank knows who it is and where the others meet, and what a launcher has inherited and must not pass
on: a job around it, ignored ends of children, blocked signals."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A rank in the world, and the world's store."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    address: str
    port: int

    def variables(self, secret_fd: int | None) -> dict[str, str]:
        """torchrun's names, and ours: where the store is hosted and which inherited descriptor holds the secret."""
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



def enough_for_xla(environ: Mapping[str, str]) -> dict[str, str]:
    """Two threads for XLA's programs where JAX would take one: a program that waits in the only thread for its peers blocks its
    own callbacks (jax.debug.callback). JAX takes PJRT_NPROC, else NPROC, else the number of processors that it may use."""
    try:
        threads = environ.get("NPROC") or str(len(os.sched_getaffinity(0)))
    except OSError:  # a sandbox forbids to ask
        threads = str(os.cpu_count())
    return {"PJRT_NPROC": "2"} if threads == "1" and not environ.get("PJRT_NPROC") else {}


_SECRETS = ("ARRAYCOMM_SECRET", "ARRAYCOMM_SECRET_FILE", "ARRAYCOMM_SECRET_FD")  # the first would show in /proc/PID/environ
# What another launcher has told its own rank, of which this one starts ranks: torchrun, an mpirun.
_ANOTHER_JOBS = ("TORCHELASTIC_", "GROUP_WORLD_SIZE", "ROLE_", "PMI_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD_")


def inherited(given: Mapping[str, str]) -> dict[str, str]:
    """What ranks may inherit of an environment: no secret, which comes in a descriptor, and nothing of a job around this one."""
    return {name: value for name, value in given.items()
            if name not in _SECRETS and not name.startswith(_ANOTHER_JOBS)}


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """Where SIGCHLD is ignored the kernel keeps no exit code, and each rank would seem to have ended well; a blocked signal would
    be blocked in the ranks too. Both as they were before at the end. What else is ignored stays so: SIGHUP by nohup, SIGINT by a
    shell for what it starts in the background.
    """
    ignored = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    main = threading.current_thread() is threading.main_thread()
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ()) if main else ()  # elsewhere somebody may wait for them
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
    """signal.signal() is for the main thread alone."""
    import ctypes  # for them alone

    ctypes.pythonapi.PyOS_setsig.argtypes = (ctypes.c_int, ctypes.c_void_p)
    ctypes.pythonapi.PyOS_setsig.restype = ctypes.c_void_p
    ctypes.pythonapi.PyOS_setsig(signal.SIGCHLD, int(handler))

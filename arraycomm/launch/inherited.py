"""What a launcher inherits from who started it and must not keep: a job around it, ignored ends of children, blocked signals."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping

_SECRETS = ("ARRAYCOMM_SECRET", "ARRAYCOMM_SECRET_FILE", "ARRAYCOMM_SECRET_FD")  # the first would show in /proc/PID/environ
# What another launcher has told its own rank, of which this one starts ranks: torchrun, an mpirun.
_ANOTHER_JOBS = ("TORCHELASTIC_", "GROUP_WORLD_SIZE", "ROLE_", "PMI_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD_")


def environ(given: Mapping[str, str]) -> dict[str, str]:
    """What ranks may inherit of it: no secret, which comes in a descriptor, and nothing of a job around this one."""
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

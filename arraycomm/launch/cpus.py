"""CPU binding of the ranks that a launcher starts."""

from __future__ import annotations

import contextlib
import os

from ..core.base import settings


def placement(ranks: int) -> list[int | None]:
    """Of each of this host's ranks the CPU to which it is bound; None: it is not bound.

    Ranks are bound if several share each CPU, equally many. Consecutive ranks then share one, as neighbours send most. Linux
    leaves ranks that yield to each other where they are for tenths of a second, for example three of four on one of two CPUs,
    and the fourth waits for them. With a CPU for each rank, or where some would get more ranks than others, the kernel decides.
    """
    try:
        cpus = sorted(os.sched_getaffinity(0))
    except OSError:  # a sandbox may forbid the system call
        return [None] * ranks
    each, odd = divmod(ranks, len(cpus))
    bound = len(cpus) > 1 and each > 1 and not odd and settings.get_flag("ARRAYCOMM_BIND")
    return [cpus[rank // each] if bound else None for rank in range(ranks)]


def bind(pid: int, cpu: int | None) -> None:
    """Binds the process (0: the calling one), which has one thread so far."""
    if cpu is not None:
        with contextlib.suppress(OSError):  # another user's program, or a sandbox: it runs anyway
            os.sched_setaffinity(pid, {cpu})

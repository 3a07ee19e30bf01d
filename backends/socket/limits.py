"""Resource limits of this process, checked before anything is opened, so that init() fails early and completely."""

from __future__ import annotations

import os

from arraycomm.core.base.errors import ResourceError

_NODE = 3  # epoll and two eventfds
_ACCEPTOR = 3  # epoll, and a connection in each of two handshakes
_RING = 2  # control connections with both neighbours
_GROUP = 3  # eventfd, shared memory here and in the engine
_SPARE = 8  # short-lived descriptors of Python and of operations


def require_descriptors(rank: int, listeners: int) -> None:
    """Raises ResourceError with need and limit. Data connections are not included: they are opened on demand."""
    need = _NODE + _ACCEPTOR + _RING + _GROUP + _SPARE + listeners
    limit = os.sysconf("SC_OPEN_MAX")  # the soft RLIMIT_NOFILE, without loading the module `resource`
    if limit < 0:
        return  # none
    used = _used(limit)
    if limit - used < need:
        raise ResourceError(f"rank {rank} needs {need} descriptors to start; the limit is {limit}, of which {used} are in "
                            "use: raise `ulimit -n`")


def _used(limit: int) -> int:
    """Number of open descriptors below the limit: the limit itself if none is left for listing them, 0 without /proc."""
    try:
        return sum(int(name) < limit for name in os.listdir("/proc/self/fd")) - 1  # minus the descriptor of the listing
    except FileNotFoundError:
        return 0
    except OSError:
        return limit

"""What the kernel allows this process: asked before anything is opened, so that a world fails whole and at once."""

from __future__ import annotations

import os

from arraycomm.core.base.errors import ResourceError

_NODE = 3  # epoll and two eventfds
_ACCEPTOR = 3  # epoll, and a connection in each of two handshakes
_RING = 2  # control connections with both neighbours
_GROUP = 3  # eventfd, shared memory here and in the engine
_SPARE = 8  # what Python and the operations open for a moment


def require_descriptors(rank: int, listeners: int) -> None:
    """Raises ResourceError that names need and limit. Data connections come on top, when they are first needed."""
    need = _NODE + _ACCEPTOR + _RING + _GROUP + _SPARE + listeners
    limit = os.sysconf("SC_OPEN_MAX")  # the soft RLIMIT_NOFILE; the module `resource` would have to be loaded
    if limit < 0:
        return  # none
    used = _used(limit)
    if limit - used < need:
        raise ResourceError(f"rank {rank} needs {need} descriptors to start; the limit is {limit}, of which {used} are in "
                            "use: raise `ulimit -n`")


def _used(limit: int) -> int:
    """Descriptors below the limit that are taken. All of them, where there is none left to look, none without /proc."""
    try:
        return sum(int(name) < limit for name in os.listdir("/proc/self/fd")) - 1  # but for that of the listing
    except FileNotFoundError:
        return 0
    except OSError:
        return limit

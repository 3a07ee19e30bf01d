"""TORCH_DISTRIBUTED_DEBUG, breakpoint(), what TORCH_CPP_LOG_LEVEL makes of the log, and the debug server's page.

The core compares what ranks call in any case. DETAIL adds, for groups that are made while it is set, an exchange before each
collective: the error lists all ranks that are late or call something else, with shapes and dtypes, and the group stays usable
(consistency.py).
"""

from __future__ import annotations

import enum
import os
import stat
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from arraycomm.core.base.log import log
from arraycomm.core.diagnostics.watch import attach

from .operations.methods import untimed
from .process_groups.consistency import TRACE, Consistency
from .process_groups.world import default_group, state

if TYPE_CHECKING:
    from arraycomm.monitor.page import DebugServer

    from .process_groups.process_group import ProcessGroup

__all__ = ["DebugLevel", "breakpoint", "get_debug_level", "set_debug_level", "set_debug_level_from_env", "start_debug_server",
           "stop_debug_server"]

_LEVELS = {"ERROR": 40, "WARNING": 30, "INFO": 20}  # logging's numbers


class DebugLevel(enum.Enum):
    """How much is checked and logged: OFF, INFO or DETAIL, as TORCH_DISTRIBUTED_DEBUG names them.

    DETAIL compares shapes and dtypes before each collective. An error lists all late or different ranks, and the group stays
    usable.

    - Blocks: never; with DETAIL every collective waits for an exchange first.
    - Errors: none; it is an enumeration.

    Examples:
        >>> int(dist.DebugLevel.DETAIL)
        2
    """

    OFF = 0
    INFO = 1
    DETAIL = 2

    def __int__(self) -> int:
        return self.value


class _State:
    """The level, once it was set or read from the environment; how often breakpoint() was skipped, by place; the server."""

    level: DebugLevel | None = None
    server: DebugServer | None = None
    skipped: dict[tuple[str, int], int] = {}


def get_debug_level() -> DebugLevel:
    """The level for new groups. The first call reads TORCH_DISTRIBUTED_DEBUG.

    - Blocks: never; nothing is sent.
    - Errors: ValueError when TORCH_DISTRIBUTED_DEBUG has another value than OFF, INFO or DETAIL.

    Examples:
        >>> dist.get_debug_level()
        <DebugLevel.OFF: 0>
    """
    if _State.level is None:
        set_debug_level_from_env()
    assert _State.level is not None
    return _State.level


def set_debug_level(level: DebugLevel) -> None:
    """Sets the level for groups that are made afterwards.

    - Blocks: never; nothing is sent.
    - Errors: TypeError for anything but a DebugLevel.

    Examples:
        >>> dist.set_debug_level(dist.DebugLevel.INFO)
        >>> dist.set_debug_level(dist.DebugLevel.OFF)
    """
    if not isinstance(level, DebugLevel):
        raise TypeError(f"set_debug_level() takes a DebugLevel, as DebugLevel.DETAIL; got {level!r}")
    _State.level = level


def set_debug_level_from_env() -> None:
    """Sets the level to the value of TORCH_DISTRIBUTED_DEBUG, in upper or lower case; OFF if it is not set.

    - Blocks: never; nothing is sent.
    - Errors: ValueError for another value than OFF, INFO or DETAIL.

    Examples:
        >>> dist.set_debug_level_from_env()
        >>> dist.get_debug_level().name
        'OFF'
    """
    text = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if text not in DebugLevel.__members__:
        raise ValueError(f"The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL, got {text!r}.")
    _State.level = DebugLevel[text]


def opened(group: ProcessGroup) -> None:
    """Called by all ranks of every new group."""
    state.profiles()  # the fast path reads state.profiler
    level = get_debug_level()
    _configure_log(level)
    if level is DebugLevel.DETAIL:
        attach(group.core, Consistency(group.core))
    if "TORCH_CPP_LOG_LEVEL" in os.environ:
        about = "new group %r (%s): global ranks %s, %s, rank %d of %d, debug level %s, pid %d"
        log().info(about, group.group_name, group.group_desc, list(group.ranks), group._config, group.rank(), group.size(),
                   level.name, os.getpid())
        log().debug("group %r: its operations go to %r, timeout %s s", group.group_name, group.core, group.core.timeout)


# ---- the log ----

def log_level(level: DebugLevel, environ: Mapping[str, str]) -> int | None:
    """logging's level for TORCH_CPP_LOG_LEVEL at this debug level; None if the variable is unset or unknown."""
    asked = environ.get("TORCH_CPP_LOG_LEVEL", "").upper()
    asked = {"0": "INFO", "1": "WARNING", "2": "ERROR", "3": "ERROR", "FATAL": "ERROR", "WARN": "WARNING"}.get(asked, asked)
    if asked == "INFO" and level is not DebugLevel.OFF:
        return 10 if level is DebugLevel.INFO else TRACE
    return _LEVELS.get(asked)


def _configure_log(level: DebugLevel) -> None:
    """Sets the level of the logger "arraycomm"; adds a handler for stderr if the program has configured none."""
    number = log_level(level, os.environ)
    if number is None:
        return
    import logging  # imported only if a level is set: the import takes as long as making a group

    logging.addLevelName(TRACE, "TRACE")
    logger = logging.getLogger("arraycomm")
    logger.setLevel(number)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(levelname).1s %(asctime)s %(process)d arraycomm] %(message)s"))
        logger.addHandler(handler)


# ---- breakpoint ----

def breakpoint(rank: int = 0, skip: int = 0, timeout_s: int = 3600) -> None:
    """Stops all ranks of the world until the debugger of rank `rank` continues. All ranks call it with the same rank.

    The debugger (pdb) begins in this function; type `up` for the caller's frame, and `continue` to go on. It reads the terminal,
    also in a process that a launcher started.

    Args:
        skip: how many calls at this line pass without a stop.
        timeout_s: how long the other ranks wait, in seconds.

    - Blocks: until the debugger continues.
    - Errors: ValueError before init_process_group() and for a rank that does not exist. CollectiveTimeout after timeout_s.

    Examples:
        On each of two ranks:

        >>> dist.breakpoint(skip=1)      # the first call at this line passes
    """
    group = default_group()
    if not 0 <= rank < group.size():
        raise ValueError(f"breakpoint() needs a rank from 0 to {group.size() - 1}, got {rank}")
    if skip and _skipped(sys._getframe(1)) <= skip:
        return
    if group.rank() == rank:
        import pdb  # imported on demand: only a debugging session needs it

        _debugger(pdb.Pdb, rank).set_trace()
    group.core.barrier(timeout=float(timeout_s))


def _skipped(frame: Any) -> int:
    place = (frame.f_code.co_filename, frame.f_lineno)
    _State.skipped[place] = _State.skipped.get(place, 0) + 1
    return _State.skipped[place]


def _debugger(base: Any, rank: int) -> Any:
    class Debugger(base):  # type: ignore[misc]
        """pdb on the terminal: multiprocessing gives its children an empty standard input."""

        def interaction(self, *args: Any, **named: Any) -> None:
            ordinary = sys.stdin
            with open(_terminal()) as sys.stdin:
                try:
                    base.interaction(self, *args, **named)
                finally:
                    sys.stdin = ordinary

    debugger = Debugger()
    debugger.message(f"\n!!! ATTENTION !!!\n\nType 'up' to get to the frame that called dist.breakpoint(rank={rank})\n")
    return debugger


def _terminal(device: Callable[[int], Any] = os.fstat) -> str:
    """The debugger's input: the standard input unless it is /dev/null."""
    mode = device(0)
    nothing = stat.S_ISCHR(mode.st_mode) and mode.st_rdev == os.makedev(1, 3)
    return "/dev/tty" if nothing else "/dev/stdin"


# ---- the debug server ----

def start_debug_server(port: int = 25999, worker_port: int = 0, start_method: str | None = None, dump_dir: str | None = None,
                       dump_interval: float = 60.0, enabled_dumps: set[str] | None = None, handlers: Any = None,
                       fetch_timeout: float = 60.0) -> None:
    """arraycomm.debug's page of the default group (docs/guide/debug.md); all ranks call it. The address is logged on rank 0.

    port: on rank 0, on loopback only; 0 takes a free one. dump_dir, dump_interval (seconds), enabled_dumps: into what folder
    of rank 0's host, how often and which of "stacks" and "fr_trace" are written. fetch_timeout: seconds that the page waits
    for a rank's stacks. start_method: the server is a new interpreter, as by "spawn", and a warning says so for others.
    ValueError for worker_port and handlers, which are not here, for a wrong start_method or number, and unknown dumps.
    AssertionError when it has been started already. Raises what arraycomm.debug.start_debug_server() does.
    """
    from arraycomm.monitor.page import start_debug_server  # imported on demand: rarely used

    if _State.server is not None:
        raise AssertionError("debug server already started")
    if worker_port != 0:
        raise ValueError(f"start_debug_server(): worker_port must be 0, got {worker_port!r}: ranks open no port here, a process "
                         "beside each one sends what the page shows to rank 0's")
    if handlers is not None:
        raise ValueError("start_debug_server(): handlers must be left out: torch's ask torch's server in each rank, which is not "
                         "here; programs read the page's /state, /metrics and /stacks (docs/guide/debug.md)")
    if start_method not in (None, "spawn", "fork", "forkserver"):
        raise ValueError(f'start_debug_server() takes start_method "spawn", "fork", "forkserver" or None, not {start_method!r}')
    if start_method in ("fork", "forkserver"):
        log().warning("start_debug_server(start_method=%r): the server is a new interpreter, as by \"spawn\"", start_method)
    _State.server = start_debug_server(untimed(default_group().core), port, timeout=fetch_timeout, dump_dir=dump_dir,
                                       dump_interval=dump_interval, enabled_dumps=enabled_dumps)


def stop_debug_server() -> None:
    """Ends this rank's part; on rank 0 the page. AssertionError when it has not been started."""
    if _State.server is None:
        raise AssertionError("debug server has not been started")
    server, _State.server = _State.server, None
    server.close()

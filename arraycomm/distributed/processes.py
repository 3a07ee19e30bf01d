"""spawn() as torch.multiprocessing has it, over arraycomm.launch's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arraycomm.core.bootstrap.environment import hosted
from arraycomm.launch.errors import ProcessError, ProcessExitedException, ProcessRaisedException

if TYPE_CHECKING:
    from arraycomm.launch.context import SpawnContext as ProcessContext

__all__ = ["ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException", "spawn"]

ProcessException = ProcessError

_PLACE = ("MASTER_ADDR", "MASTER_PORT")


def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, join: bool = True, daemon: bool = False,
          start_method: str = "spawn") -> ProcessContext | None:
    """Runs fn(i, *args) in `nprocs` processes, which can call init_process_group() without arguments.

    If MASTER_ADDR and MASTER_PORT are set, here or in fn, rank 0 serves the store there.

    Args:
        join: False gives a ProcessContext at once, with join(timeout), pids(), processes and sentinels.

    - Blocks: until all processes have ended; with join=False until they have started.
    - Errors: ProcessRaisedException (with the traceback) or ProcessExitedException for the first process that fails, after the
      others have been ended. ValueError or TypeError for the arguments.

    Examples:
        >>> dist.spawn(print, nprocs=0)
        Traceback (most recent call last):
        ValueError: ...
    """
    from arraycomm.launch import spawn as launcher

    place = {} if hosted(os.environ) else {name: os.environ[name] for name in _PLACE if name in os.environ}
    launcher.check(fn, args, start_method)
    context: Any = launcher.spawn(_run, (fn, place, *args), nprocs, join=join, daemon=daemon, start_method=start_method)
    return None if join else context


def _run(rank: int, fn: Callable[..., Any], place: Mapping[str, str], *args: Any) -> None:
    os.environ.update(place)
    fn(rank, *args)


def __getattr__(name: str) -> Any:
    if name == "ProcessContext":  # imported on demand: it loads multiprocessing
        from arraycomm.launch.context import SpawnContext

        return SpawnContext
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

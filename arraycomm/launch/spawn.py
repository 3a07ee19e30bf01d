"""spawn: runs a function in several new processes of this machine that can call `arraycomm.init()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import SpawnContext


def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, *, join: bool = True,
          daemon: bool = False, start_method: str = "spawn") -> SpawnContext | None:
    """Runs fn(rank, *args) in `nprocs` processes; with join=True until all have ended, otherwise gives a context.

    The children find each other through their environment, as under the launcher; this process hosts their store.
    start_method: spawn (default; fn and args are pickled), forkserver or fork.

    Raises ProcessRaisedException or ProcessExitedException for the first rank that fails, after the others have been
    ended (within 2 s), and ValueError or TypeError for arguments that make no sense. When this process dies, in
    whatever way, the kernel ends the children.
    """
    from .context import SpawnContext  # here: multiprocessing would be a third of what `import arraycomm` loads

    if not callable(fn):
        raise TypeError(f"spawn needs a function to run, got {type(fn).__name__}")
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise ValueError(f"nprocs must be a whole number of processes, at least 1, got {nprocs!r}")
    context = SpawnContext(fn, tuple(args), nprocs, daemon, start_method)
    if not join:
        return context
    try:
        context.join()
    finally:
        context.close()
    return None

"""spawn: runs a function in several new processes of this machine that can call `arraycomm.init()`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    from .context import SpawnContext


@overload
def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, *, join: Literal[True] = True,
          daemon: bool = False, start_method: str = "spawn") -> list[Any]: ...
@overload
def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, *, join: Literal[False],
          daemon: bool = False, start_method: str = "spawn") -> SpawnContext: ...
@overload
def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, *, join: bool,
          daemon: bool = False, start_method: str = "spawn") -> SpawnContext | list[Any]: ...
def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, *, join: bool = True,
          daemon: bool = False, start_method: str = "spawn") -> SpawnContext | list[Any]:
    """Runs fn(rank, *args) in `nprocs` processes. With join=True waits for all and gives what they have returned, in the order of
    the ranks; otherwise gives a context, whose results() does.

    The children find each other through their environment, as under the launcher; this process hosts their store. When this
    process dies, in whatever way, the kernel ends the children. Children that share CPUs, equally many on each, are each bound to
    one, unless ARRAYCOMM_BIND is 0.

    Args:
        start_method: spawn (default; fn and args are pickled), forkserver or fork. What fn returns is pickled always.

    - Blocks: with join=True until all processes have ended.
    - Errors: ProcessRaisedException or ProcessExitedException for the first rank that fails, after the others have been ended
      (within 2 s), ValueError or TypeError for arguments that make no sense, and RuntimeError in a daemonic process, which may
      have no children.

    Examples:
        >>> def work(rank):                                  # in a module, as it is pickled
        ...     with arraycomm.init() as group:
        ...         return float(group.all_reduce(np.float64(rank)))
        >>> def main():
        ...     print(arraycomm.spawn(work, nprocs=2))       # [1.0, 1.0]
    """
    from .context import SpawnContext  # imported on demand: multiprocessing would be a third of the load of `import arraycomm`

    check(fn, args, start_method)
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise ValueError(f"nprocs must be a whole number of processes, at least 1, got {nprocs!r}")
    context = SpawnContext(fn, tuple(args), nprocs, daemon, start_method)
    if not join:
        return context
    try:
        context.join()
        return context.results()
    finally:
        context.close()


def check(fn: Callable[..., Any], args: Sequence[Any], start_method: str) -> None:
    """Checks that new processes can be started here and run fn(rank, *args). Raises as spawn()."""
    if not callable(fn):
        raise TypeError(f"spawn needs a function to run, got {type(fn).__name__}")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args is a tuple of what comes after the rank, got {type(args).__name__}; for one argument args=(x,)")
    _check_may_have_children()
    if start_method != "fork":
        _check_found_again(fn)


def _check_may_have_children() -> None:
    from multiprocessing import current_process

    if getattr(current_process(), "_inheriting", False):  # CPython's flag; its own error is longer
        raise RuntimeError("spawn was called by a process that spawn has started, while that imports the program's file: put the "
                           "call below `if __name__ == \"__main__\":`")
    if current_process().daemon:
        raise RuntimeError("spawn cannot start ranks from this process: it is daemonic (a worker of a multiprocessing.Pool, or "
                           "started with daemon=True), and may have no children. Call spawn from the program itself, or from a "
                           "worker of concurrent.futures.ProcessPoolExecutor")


def _check_found_again(fn: Callable[..., Any]) -> None:
    """Checks the program's file, which the new processes import to find fn. Raises ValueError if there is no such file."""
    from multiprocessing.process import ORIGINAL_DIR  # type: ignore[attr-defined]

    if isinstance(fn, FunctionType) and "<" in fn.__qualname__:
        raise ValueError(f"spawn cannot run {fn.__qualname__!r} in new processes: they find a function by its name in its "
                         "module, where a lambda or a function inside another one is not; move it there, or give "
                         "start_method='fork'")
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return
    file = getattr(main, "__file__", None)
    if os.path.exists(os.path.join(ORIGINAL_DIR, file)) if file else getattr(fn, "__module__", None) != "__main__":
        return
    name = getattr(fn, "__name__", fn)
    raise ValueError(f"spawn cannot run {name!r} in new processes: they import the program's file, and this program has none "
                     "(it was typed into a session or a notebook, or read from standard input or -c). Put the function into a "
                     "module and import it from there, or give start_method='fork'")

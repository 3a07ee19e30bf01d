"""run(): ranks that are threads of this process, for a session, a notebook or a test."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from ..base import settings
from ..interface import registry
from .group import Group
from .routes import Route, Routes
from .start import began, seconds_of

_Result = TypeVar("_Result")

_LOOK = 0.2  # s between checks for an exception in this thread
_SOON = 0.6  # s for the ranks to end by themselves after an interrupt
_LAST = 10.0  # s for the ranks to end after an injected exception


def run(fn: Callable[..., _Result], n: int, *args: Any, timeout: float | timedelta | None = None) -> list[_Result]:
    """Runs fn(group, *args) in n threads of this process, each of which is a rank with a Group of its own.

    Gives their return values, in the order of the ranks. fn is any callable, also a lambda. All ranks share args; nothing is
    pickled. Any thread may call it, also inside fn. The groups are closed at the end.

    A rank that raises leaves, and the others get PeerLost where they wait for it. Ctrl-C ends the ranks: their operations with
    Aborted, their Python code with KeyboardInterrupt.

    - Blocks: until all ranks have ended.
    - Timeout: the default of the groups' operations, as in init(); not of fn.
    - Errors: what the first rank has raised, with a note that names the rank, once all have ended. TypeError, ValueError for
      arguments that make no sense.

    Examples:
        >>> arraycomm.run(lambda group, factor: factor * group.rank, 3, 10)
        [0, 10, 20]

    The ranks have one interpreter between them: they are no faster than one, unless what they call releases its lock.
    """
    if not callable(fn):
        raise TypeError(f"run needs a function to call with the group, got {type(fn).__name__}")
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"run needs a whole number of ranks, got {type(n).__name__}: run(fn, n, *args)")
    if n < 1:
        raise ValueError(f"run needs at least one rank, got {n}")
    return _Ranks(fn, n, args, timeout).results()


def _open(n: int, timeout: float) -> tuple[list[Route], list[Group]]:
    settings.check()
    (backend, types), = registry.choose("socket").items()
    socket: Any = backend  # only the socket backend supports ranks as threads
    routes = [Route(backend, communicator, types) for communicator in socket.inside(n, name="run", timeout=timeout)]
    return routes, [Group(Routes([route], timeout), timeout) for route in routes]


class _Ranks:
    """One call of run()."""

    def __init__(self, fn: Callable[..., Any], n: int, args: tuple[Any, ...], timeout: float | timedelta | None) -> None:
        self._fn, self._size, self._args = fn, n, args
        self._routes, self._groups = _open(n, seconds_of(timeout))
        self._results: list[Any] = [None] * n
        self._failures: list[tuple[int, BaseException]] = []  # in chronological order
        self._ended: list[int] = []
        self._end_of_one = threading.Semaphore(0)
        self._threads = [threading.Thread(target=contextvars.copy_context().run, args=(self._run, rank), daemon=True,
                                          name=f"rank {rank} of {n}") for rank in range(n)]

    def _run(self, rank: int) -> None:
        try:
            with self._groups[rank] as group:
                try:
                    began(group, [self._routes[rank]])
                    self._results[rank] = self._fn(group, *self._args)
                except BaseException as error:
                    self._failures.append((rank, error))  # before the peers are notified
                    raise
        except BaseException as error:
            if all(error is not known for _, known in self._failures):  # an error of close()
                self._failures.append((rank, error))
        finally:
            self._ended.append(rank)
            self._end_of_one.release()

    def results(self) -> list[Any]:
        try:
            for thread in self._threads:
                thread.start()
            self._wait()
        except BaseException as error:
            self._end(type(error).__name__)
            raise
        finally:
            for thread, group in zip(self._threads, self._groups, strict=True):
                if thread.ident is None:
                    group.close("a rank that was not begun")
        if self._failures:
            rank, first = self._failures[0]
            notes = [*getattr(first, "__notes__", ()), f"in rank {rank} of {self._size} of arraycomm.run()"]
            setattr(first, "__notes__", notes)  # noqa: B010 - as add_note() of Python 3.11 does
            raise first
        return self._results

    def _wait(self, seconds: float = float("inf")) -> None:
        """Polls, so that an exception injected into this thread is raised between polls. Not by join(): after an exception,
        CPython 3.11 takes the thread for ended."""
        while seconds > 0:
            begun = [thread for thread in self._threads if thread.ident is not None]
            if len(self._ended) == len(begun):
                for thread in begun:
                    thread.join()
                return
            seconds -= 0 if self._end_of_one.acquire(timeout=_LOOK) else _LOOK

    def _end(self, why: str) -> None:
        import ctypes  # lazy: almost never needed

        for group in self._groups:
            if not group.closed:
                group.abort(why)
        self._wait(_SOON)
        for rank, thread in enumerate(self._threads):
            if rank not in self._ended and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
        self._wait(_LAST)

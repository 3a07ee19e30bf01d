"""The child side of spawn: runs the function in a new process, and sends the exit report."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import ORIGINAL_DIR  # type: ignore[attr-defined]
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, NamedTuple, cast

from ..core.base.errors import Aborted, PeerLost
from ..core.base.lifeline import tie
from ..core.bootstrap import secret
from .cpus import bind
from .environ import Place, enough_for_xla, inherited


class Answer(NamedTuple):
    """Exit report: the return value of the rank's function."""

    pickled: bytes
    code: int = 0


class Exit(NamedTuple):
    """Exit report: the function called sys.exit()."""

    code: int


class Report(NamedTuple):
    """Exit report: the exception that ended the rank."""

    summary: str
    traceback: str
    pickled: bytes | None
    consequence: bool
    code: int = 1


class Work:
    """The function and its arguments. A new process unpickles them after it has imported the program's module: multiprocessing
    does not import it if the module is the `__main__` of a package, a folder or a zip file."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._call: tuple[Callable[..., Any], tuple[Any, ...]] | None = (fn, args)

    def __getstate__(self) -> tuple[bytes, str, str]:
        pickled = bytes(ForkingPickler.dumps(self._call))
        return (pickled, *(_main() if b"__main__" in pickled else ("", "")))

    def __setstate__(self, state: tuple[bytes, str, str]) -> None:
        self._call, self._state = None, state

    def __call__(self, rank: int) -> Any:
        fn, args = self._call or self._loaded()
        return fn(rank, *args)

    def _loaded(self) -> Any:
        pickled, module, path = self._state
        if module or path:
            _become(module, path)
        return pickle.loads(pickled)


def _main() -> tuple[str, str]:
    """The program's origin: the package's module, or the path of the folder or zip file. Both empty for a script or plain
    module."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name.rpartition(".")[2] != "__main__":
        return "", ""
    if "." in spec.name:
        return spec.name, ""
    return "", os.path.join(ORIGINAL_DIR, os.path.dirname(str(main.__file__)))


def _become(module: str, path: str) -> None:
    """Imports the program's module as `__main__`, as multiprocessing does in other cases (spawn._fixup_main_from_name)."""
    name, process = "__mp_main__", cast(Any, multiprocessing.current_process())
    process._inheriting = True  # spawn() checks this flag, to detect a program that starts ranks while it is imported
    try:
        found = runpy.run_module(module, run_name=name, alter_sys=True) if module else runpy.run_path(path, run_name=name)
    finally:
        del process._inheriting
    main = ModuleType(name)
    main.__dict__.update(found)
    sys.modules["__main__"] = sys.modules[name] = main


class Task(NamedTuple):
    """A child's input, sent through multiprocessing's pipe: the secret is in no argument or variable."""

    work: Work
    place: Place
    cpu: int | None
    secret: bytes | None
    lifeline: Connection
    inherited_writer: int  # after a fork, the parent's end of the lifeline; -1 otherwise
    reports: Connection


def run(task: Task) -> None:
    if task.inherited_writer >= 0:
        os.close(task.inherited_writer)
    tie(task.lifeline.fileno(), os.getpid())
    bind(0, task.cpu)
    for name in os.environ.keys() - inherited(os.environ).keys():
        del os.environ[name]
    secret_fd = None if task.secret is None else secret.to_descriptor(task.secret)
    os.environ.update(enough_for_xla(os.environ) | task.place.variables(secret_fd))
    try:
        task.reports.send(_answer(task.work(task.place.rank)))
    except KeyboardInterrupt:  # a terminal's Ctrl-C reaches the parent too, which reports it
        task.reports.send(Exit(128 + signal.SIGINT))
        sys.exit(128 + signal.SIGINT)
    except SystemExit as error:
        task.reports.send(Exit(error.code if isinstance(error.code, int) else int(error.code is not None)))
        raise
    except Exception as error:
        task.reports.send(_report(error))
        sys.exit(1)


def _answer(value: Any) -> Answer:
    try:
        return Answer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # a user's __reduce__ may raise anything
        raise TypeError(f"spawn returns the ranks' results to its caller, and this rank's {type(value).__name__} cannot be "
                        f"pickled ({error}); return an object that can be pickled, or None") from error


def _report(error: Exception) -> Report:
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Report(summary, text, _pickled(error), isinstance(error, (PeerLost, Aborted)))


def _pickled(error: Exception) -> bytes | None:
    """The pickled exception; None if it cannot be pickled and unpickled: many exceptions fail only when they are unpickled."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        return data
    except Exception:  # a user's __reduce__ may raise anything
        return None

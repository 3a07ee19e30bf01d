"""Worlds of ranks that are started once and then given many tasks.

A task is a function `task(context, **parameters)` of a module beside this one, called on every rank. What goes wrong in it
comes back as text; a rank that hangs is ended after a hard limit, and the stacks of all ranks are shown.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import arraycomm
from arraycomm.launch.context import SpawnContext
from arraycomm.launch.spawn import spawn

from .data import bits

LIMIT = 120.0  # s for one task: hundreds of combinations on a busy machine
_SHOWN = 12  # failures of one task that are printed
_Test = TypeVar("_Test", bound=Callable[..., None])

multiprocessing.set_forkserver_preload(["numpy", "ml_dtypes", "torch", "jax", "jax.numpy"])


class Settings(NamedTuple):
    """What tells one world from another. `hosts`: a host name per rank, where ranks are to believe in several."""

    size: int
    transport: str = "auto"
    environ: tuple[tuple[str, str], ...] = ()
    hosts: tuple[str, ...] = ()
    mpi: str = ""  # the library (see mpi.py), where mpirun is to start the ranks

    def variables(self, rank: int) -> dict[str, str]:
        host = {"ARRAYCOMM_HOSTID": self.hosts[rank]} if self.hosts else {}
        return {"ARRAYCOMM_TRANSPORT": self.transport, **dict(self.environ), **host}


def only(fits: Callable[[Settings], bool]) -> Callable[[_Test], _Test]:
    """For a test that takes `world`: it is run in the worlds that fit."""
    def mark(test: _Test) -> _Test:
        vars(test)["fits"] = fits
        return test

    return mark


@dataclass
class Context:
    """What a task works with."""

    group: arraycomm.Group
    failures: list[str] = field(default_factory=list)
    digests: dict[str, bytes] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    def check(self, condition: object, label: str) -> None:
        """Notes a failure. Not an assertion: the other ranks go on, and this one has to go with them."""
        if not condition:
            self.failures.append(label)

    def raises(self, label: str, kinds: type[BaseException] | tuple[type[BaseException], ...], text: str,
               call: Callable[[], object]) -> None:
        """Notes a failure unless the call raises one of these errors, in whose text this regular expression is found."""
        try:
            call()
        except kinds as error:
            self.check(re.search(text, str(error), re.DOTALL), f"{label}: {str(error)!r} does not say {text!r}")
        except Exception as error:  # any other error is the finding
            self.check(False, f"{label}: {type(error).__name__}({error}), not {kinds}")
        else:
            self.check(False, f"{label}: no error")

    def same(self, label: str, array: Any) -> None:
        """The parent compares these bits between the ranks."""
        self.digests[label] = bits(array)

    @contextlib.contextmanager
    def variant(self, environ: Mapping[str, str]) -> Iterator[Context]:
        """A group of the same ranks under other settings: those that are read when a group is opened."""
        before = {name: os.environ.get(name) for name in environ}
        os.environ.update(environ)
        try:
            group = self.group.split(0)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        assert group is not None
        with group:
            yield Context(group, self.failures, self.digests)
            group.barrier()  # a rank that has all it needs must not leave while another one still reads from it


class Answer(NamedTuple):
    """What a rank says after a task: what it returned, what went wrong, and bits that all ranks must share."""

    value: Any
    failures: list[str]
    digests: dict[str, bytes]
    broken: bool


class World:
    """The parent's side. Started with the first task, and anew after a task that broke it."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self._folder = folder
        self._context: SpawnContext | None = None
        self._pipes: list[Connection] = []
        self._mpirun: Mpirun | None = None

    @property
    def size(self) -> int:
        return self.settings.size

    def run(self, task: str, *, limit: float = LIMIT, **parameters: Any) -> list[Answer]:
        """Runs "module.function" on all ranks. AssertionError with all failures, by rank."""
        if not self._pipes:
            self._start()
        for pipe in self._pipes:
            pipe.send((task, parameters))
        answers = self._collect(limit, task)
        if any(answer.broken for answer in answers):
            self.close()
        problems = [f"rank {rank}: {text}" for rank, answer in enumerate(answers) for text in answer.failures]
        problems += _unlike([answer.digests for answer in answers])
        if problems:
            more = [f"... and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            raise AssertionError("\n".join([f"{task} in {self.settings}:", *problems[:_SHOWN], *more]))
        return answers

    def _start(self) -> None:
        if self.settings.mpi:
            self._mpirun = Mpirun(self.settings, self._folder)
            self._pipes = self._mpirun.pipes
            return
        context = multiprocessing.get_context("forkserver")
        pairs = [context.Pipe() for _ in range(self.size)]
        self._pipes = [ours for ours, _ in pairs]
        theirs = [pipe for _, pipe in pairs]
        started = spawn(serve, (theirs, self.settings, str(self._folder)), nprocs=self.size, join=False, daemon=True,
                        start_method="forkserver")
        for pipe in theirs:
            pipe.close()
        assert isinstance(started, SpawnContext)
        self._context = started

    def _collect(self, limit: float, task: str) -> list[Answer]:
        deadline = time.monotonic() + limit
        answers: dict[Connection, Answer] = {}
        while len(answers) < self.size:
            open_pipes = [pipe for pipe in self._pipes if pipe not in answers]
            ready = wait(open_pipes, max(0.0, deadline - time.monotonic()))
            if not ready:
                self._give_up(f"{task} did not end within {limit:g} s", [pipe in answers for pipe in self._pipes])
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    answers[pipe] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    self._give_up(f"{task}: rank {self._pipes.index(pipe)} died", [p in answers for p in self._pipes])
        return [answers[pipe] for pipe in self._pipes]

    def _give_up(self, reason: str, answered: Sequence[bool]) -> None:
        """Ends the world and raises AssertionError with every rank's stacks."""
        stacks = []
        for rank in range(self.size):
            state = "had answered" if answered[rank] else "had not answered"
            code = "" if self._context is None else f" (exit code {self._context.processes[rank].exitcode})"
            stacks.append(f"rank {rank}{code} {state}\n{self._stack(rank)}")
        self.close()
        raise AssertionError(f"{reason} in {self.settings}\n" + "\n".join(stacks))

    def _stack(self, rank: int) -> str:
        file = self._folder / f"stack-{rank}"
        if self._mpirun is not None:
            pid: int | None = self._mpirun.pids[rank]
        else:
            assert self._context is not None
            process = self._context.processes[rank]
            pid = process.pid if process.exitcode is None else None
        with contextlib.suppress(ProcessLookupError):
            if pid is None:
                return f"it has ended\n{file.read_text()}"
            os.kill(pid, signal.SIGUSR1)
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline and not file.read_text().endswith("\n"):
                time.sleep(0.05)
        return file.read_text()

    def close(self) -> None:
        """Idempotent."""
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        if self._context is not None:
            self._context.close()
            self._context = None
        if self._mpirun is not None:
            self._mpirun.close()
            self._mpirun = None


class Mpirun:
    """Ranks that an mpirun starts: they connect here. AssertionError with what was printed when they do not."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        from . import mpi

        self._output = (folder / "mpirun").open("w+")
        variables = mpi.environ(settings.mpi) | settings._replace(hosts=()).variables(0)
        variables["ARRAYCOMM_TEST_HOSTS"] = ",".join(settings.hosts)
        with tempfile.TemporaryDirectory() as short, Listener(os.path.join(short, "ranks")) as listener:
            assert isinstance(listener.address, str)
            self._process = subprocess.Popen(
                [*mpi.command(settings.mpi, settings.size), sys.executable, "-m", "tests.conformance.mpi", listener.address,
                 str(folder)], env=variables, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True)
            found: dict[int, tuple[Connection, int]] = {}
            deadline = time.monotonic() + LIMIT
            while len(found) < settings.size:
                # A listener has no timeout of its own.
                if not wait([listener._listener._socket], 0.5):  # type: ignore[attr-defined]
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        self.close()
                        raise AssertionError(f"the ranks of {settings} did not come:\n{self.printed()}")
                    continue
                pipe = listener.accept()
                assert isinstance(pipe, Connection)
                rank, pid = pipe.recv()
                found[rank] = pipe, pid
        self.pipes = [found[rank][0] for rank in range(settings.size)]
        self.pids = [found[rank][1] for rank in range(settings.size)]

    def printed(self) -> str:
        self._output.seek(0)
        return self._output.read()

    def close(self) -> None:
        """The ranks end by themselves when their connections are closed; else they are killed."""
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _unlike(digests: Sequence[Mapping[str, bytes]]) -> list[str]:
    """Labels under which ranks have other bits than the first rank that has any."""
    problems = []
    for label in {label: None for digest in digests for label in digest}:
        found = {rank: digest[label] for rank, digest in enumerate(digests) if label in digest}
        first = next(iter(found.values()))
        odd = [rank for rank, value in found.items() if value != first]
        if odd:
            problems.append(f"{label}: ranks {odd} have other bits than rank {next(iter(found))}")
    return problems


def serve(rank: int, pipes: Sequence[Connection], settings: Settings, folder: str) -> None:
    """A rank: does tasks until the parent closes the pipe."""
    for index, pipe in enumerate(pipes):
        if index != rank:
            pipe.close()
    gc.freeze()  # the libraries', at which every collection of a task would look again for an eighth of a second
    with open(Path(folder, f"stack-{rank}"), "w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        os.environ.update(settings.variables(rank))
        with arraycomm.init(timeout=LIMIT / 2) as group:
            serve_group(pipes[rank], group)


def serve_group(pipe: Connection, group: arraycomm.Group) -> None:
    """Does tasks until the parent closes the pipe, or one breaks the world."""
    while (answer := _serve_one(pipe, group)) is not None:
        pipe.send(answer)
        if answer.broken:
            return


def _serve_one(pipe: Connection, group: arraycomm.Group) -> Answer | None:
    try:
        task, parameters = pipe.recv()
    except EOFError:
        return None
    module, _, function = task.rpartition(".")
    context = Context(group)
    try:
        value = getattr(importlib.import_module(f".{module}", __package__), function)(context, **parameters)
        return Answer(value, context.failures, context.digests, False)
    except BaseException:
        # Wherever this rank was, the others are somewhere else now.
        text = "".join(traceback.format_exception(*sys.exc_info()))
        return Answer(None, [*context.failures, text], context.digests, True)

"""Jobs whose ranks a test kills, stops, starves and talks to: processes that carry out one task after another.

A task is a function `task(context, **parameters)` of a module that the ranks can import. Unlike arraycomm-run, nobody
here ends the other ranks when one fails: what the survivors do is what is tested.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import arraycomm
from arraycomm.core.bootstrap import secret as secrets
from arraycomm.launch.environ import Place
from arraycomm.launch.nodes import Meeting, meet

from . import network

LIMIT = 120.0  # s: no task of these tests takes that long unless it hangs
STACK_LIMIT = 2.0  # s for a rank to tell where it hangs
_CONTEXT = multiprocessing.get_context("forkserver")
multiprocessing.set_forkserver_preload(["numpy", "ml_dtypes", "arraycomm.launch", "arraycomm.backends.socket"])


class Holdings(NamedTuple):
    """What a process has that a closed group must have given back."""

    descriptors: tuple[str, ...]
    threads: int
    children: str
    memory_files: int

    @classmethod
    def now(cls) -> Holdings:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            memory_files = sum("/memfd:" in line for line in maps)
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as children:
            return cls(tuple(sorted(map(_kind, _descriptors()))), len(os.listdir("/proc/self/task")), children.read(),
                       memory_files)


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def _kind(target: str) -> str:
    return target.partition("[")[0] if target.startswith(("socket:", "pipe:")) else target


@dataclass
class Context:
    """What a task works with: the rank's group once a task has opened it."""

    rank: int
    size: int
    pipe: Connection
    group: arraycomm.Group | None = None
    before: Holdings | None = None

    @property
    def world(self) -> arraycomm.Group:
        assert self.group is not None, "no task has opened the group"
        return self.group

    def say(self, value: Any = None) -> None:
        """An answer ahead of the task's own: "I am here"."""
        self.pipe.send(Answer(value, at=time.monotonic()))


class Answer(NamedTuple):
    """What a task returned, or the error that it raised. `at`: time.monotonic() of that, the same clock in all processes;
    or the error's attribute `at`, where the task had more to do."""

    value: Any = None
    error: str = ""  # the exception's type
    text: str = ""
    ranks: tuple[int, ...] = ()
    at: float = 0.0
    trace: str = ""

    def __repr__(self) -> str:
        return f"{self.error}: {self.text}" if self.error else f"value {self.value!r}"


class Job:
    """The ranks of a job. A context manager that ends them and looks for what they left behind.

    transport: ARRAYCOMM_TRANSPORT. environ: further variables of all ranks; of_rank: those of one rank, by its number.
    spaces: the network namespace of each rank; there the ranks find each other through MASTER_ADDR in `environ`,
    elsewhere through a store in this process.
    tasks: a module whose functions are tasks besides those of tasks.py.
    """

    def __init__(self, size: int, transport: str = "auto", environ: Mapping[str, str] | None = None, *,
                 of_rank: Callable[[int], Mapping[str, str]] | None = None, spaces: Iterable[str] = (),
                 opened: bool = True, tasks: types.ModuleType | None = None) -> None:
        self.size = size
        self._tasks = tasks.__name__ if tasks else ""
        self.names = list(spaces)
        self.meeting: Meeting | None = None if self.names else meet(1, 0, size)
        self.processes: list[Any] = []
        self._directory = tempfile.TemporaryDirectory()  # where a rank that hangs tells where it is
        self._pipes: list[Connection] = []
        for rank in range(size):
            variables = {"ARRAYCOMM_TRANSPORT": transport, **(environ or {}), **(of_rank(rank) if of_rank else {})}
            self._start(rank, variables)
        if opened:
            self.call("open_group")

    def _start(self, rank: int, variables: dict[str, str]) -> None:
        secret = None
        if self.meeting:
            place = Place(rank, self.size, rank, self.size, 0, self.meeting.address, self.meeting.port)
            variables = {**place.variables(None), **variables}
            secret = self.meeting.secret
        else:
            variables = {"RANK": str(rank), "WORLD_SIZE": str(self.size), **variables}
        ours, theirs = _CONTEXT.Pipe()
        space = self.names[rank] if self.names else ""
        stack = Path(self._directory.name, str(rank))
        stack.touch()
        arguments = (rank, self.size, theirs, variables, secret, space, self._tasks, stack)
        process = _CONTEXT.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self.processes.append(process)
        self._pipes.append(ours)

    # ---- tasks ----

    def begin(self, task: str, ranks: Iterable[int] | None = None, **parameters: Any) -> None:
        """Starts "function" of tasks.py on these ranks (all when None); answer() gives what comes of it."""
        for rank in range(self.size) if ranks is None else ranks:
            self._pipes[rank].send((task, parameters))

    def answer(self, rank: int, limit: float = LIMIT) -> Answer:
        """The next answer of a rank; AssertionError when it hangs or has died."""
        return self.answers([rank], limit)[rank]

    def answers(self, ranks: Iterable[int] | None = None, limit: float = LIMIT) -> dict[int, Answer]:
        wanted = list(range(self.size) if ranks is None else ranks)
        deadline = time.monotonic() + limit
        found: dict[int, Answer] = {}
        while len(found) < len(wanted):
            pipes = {self._pipes[rank]: rank for rank in wanted if rank not in found}
            ready = wait(list(pipes), max(0.0, deadline - time.monotonic()))
            assert ready, f"hang: no answer of ranks {sorted(pipes.values())} within {limit:g} s{self._stacks(pipes.values())}"
            for pipe in ready:
                rank = pipes[pipe]  # type: ignore[index]
                try:
                    found[rank] = self._pipes[rank].recv()
                except (EOFError, ConnectionResetError):
                    raise AssertionError(f"rank {rank} died, exit code {self.exit_code(rank)}") from None
        return {rank: found[rank] for rank in wanted}

    def _stacks(self, ranks: Iterable[int]) -> str:
        """Where they are, as Python sees it."""
        told = ""
        for rank in sorted(ranks):
            file = Path(self._directory.name, str(rank))
            with contextlib.suppress(ProcessLookupError):
                self.signal(rank, signal.SIGUSR2)
            end, size = time.monotonic() + STACK_LIMIT, -1
            while time.monotonic() < end and (not file.stat().st_size or file.stat().st_size != size):  # written bit by bit
                size = file.stat().st_size
                self.processes[rank].join(STACK_LIMIT / 20)
            told += f"\n\nrank {rank}:\n{file.read_text() or 'it does not tell where it is'}"
        return told

    def call(self, task: str, ranks: Iterable[int] | None = None, *, limit: float = LIMIT,
             **parameters: Any) -> dict[int, Any]:
        """begin() and answers(), where nothing may go wrong: the values by rank."""
        chosen = list(range(self.size) if ranks is None else ranks)
        self.begin(task, chosen, **parameters)
        answers = self.answers(chosen, limit)
        for rank, answer in answers.items():
            assert not answer.error, f"rank {rank} in {task}:\n{answer.trace}"
        return {rank: answer.value for rank, answer in answers.items()}

    # ---- faults ----

    def pid(self, rank: int) -> int:
        pid = self.processes[rank].pid
        assert pid is not None
        return int(pid)

    def signal(self, rank: int, number: int) -> float:
        """When the signal was sent (time.monotonic())."""
        moment = time.monotonic()
        os.kill(self.pid(rank), number)
        return moment

    @staticmethod
    def now() -> float:
        """The clock of Answer.at."""
        return time.monotonic()

    def kill(self, rank: int) -> float:
        return self.signal(rank, signal.SIGKILL)

    def exit_code(self, rank: int, limit: float = LIMIT) -> int | None:
        self.processes[rank].join(limit)
        return self.processes[rank].exitcode  # type: ignore[no-any-return]

    # ---- the end ----

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(LIMIT)
        for pipe in self._pipes:
            pipe.close()
        if self.meeting:
            self.meeting.close()
        self._directory.cleanup()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        self.close()


# ---- the ranks ----


def closed_jobs(make: Callable[..., Job]) -> Iterator[Callable[..., Job]]:
    """For a fixture: `make`, whose jobs are ended after the test, whatever happened."""
    made: list[Job] = []

    def kept(*arguments: Any, **named: Any) -> Job:
        made.append(make(*arguments, **named))
        return made[-1]

    yield kept
    for one in made:
        one.close()


def _serve(rank: int, size: int, pipe: Connection, variables: Mapping[str, str], secret: bytes | None, space: str,
           more: str, stack: Path) -> None:
    told = stack.open("w", encoding="utf-8")  # open for as long as the rank runs
    faulthandler.register(signal.SIGUSR2, told)
    os.environ.update(variables)
    if secret is not None:
        os.environ["ARRAYCOMM_SECRET_FD"] = str(secrets.to_descriptor(secret))
    if space:
        network.enter(space)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the forkserver ignores it
    context = Context(rank, size, pipe)
    modules = [importlib.import_module(name) for name in (more, f"{__package__}.tasks") if name]
    while (request := _next(pipe)) is not None:
        answer = _attempt(modules, context, *request)
        with contextlib.suppress(BrokenPipeError):
            pipe.send(answer)


def _next(pipe: Connection) -> tuple[str, dict[str, Any]] | None:
    try:
        return pipe.recv()  # type: ignore[no-any-return]
    except EOFError:
        return None


def _attempt(modules: Sequence[types.ModuleType], context: Context, task: str, parameters: dict[str, Any]) -> Answer:
    try:
        function = next(vars(module)[task] for module in modules if task in vars(module))
        value = function(context, **parameters)
        return Answer(value, at=time.monotonic())
    except (Exception, KeyboardInterrupt) as error:
        at = getattr(error, "at", time.monotonic())
        return Answer(None, type(error).__name__, str(error), getattr(error, "ranks", ()), at, traceback.format_exc())


def settled(before: Holdings, limit: float = 1.0) -> Holdings:
    """What is held now; threads that have been told to end are given a moment to do so."""
    end = time.monotonic() + limit
    while (now := Holdings.now()) != before and time.monotonic() < end:
        threading.Event().wait(0.01)
    return now

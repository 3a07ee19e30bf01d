"""The processes of one `spawn`: started, watched, ended together."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from ..core.base.lifeline import Lifeline
from .child import Answer, Exit, Report, Task, Work, run
from .cpus import placement
from .ending import GRACE_S, Schedule, cause
from .environ import Place
from .errors import ProcessError, ProcessExitedException, ProcessRaisedException, describe_exit
from .nodes import meet


class _Failure(NamedTuple):
    rank: int
    pid: int
    code: int | None  # not known
    report: Report | None

    @property
    def consequence(self) -> bool:
        return self.report is not None and self.report.consequence

    def error(self) -> ProcessRaisedException | ProcessExitedException:
        name = f"rank {self.rank} (pid {self.pid})"
        if self.report is None:
            code = _UNKNOWN if self.code is None else self.code
            return ProcessExitedException(f"{name} {_how(self.code)}", self.rank, self.pid, code)
        text = f"{name} raised {self.report.summary}\n\n{self.report.traceback}"
        return ProcessRaisedException(text, self.rank, self.pid)


_UNKNOWN = 255  # as multiprocessing has it


def _how(code: int | None) -> str:
    if code is not None:
        return describe_exit(code)
    return ("ended without a report, and its exit status is unknown: this process ignores SIGCHLD, or other code in it has "
            "waited for all children")


class SpawnContext:
    """The running children. `processes`: multiprocessing's objects, by rank."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int, daemon: bool,
                 start_method: str) -> None:
        self._multiprocessing: Any = multiprocessing.get_context(start_method)
        self._meeting = meet(1, 0, nprocs)
        self._lifeline = Lifeline()
        self._schedule = Schedule()
        self._ending = False
        self._failures: list[_Failure] = []
        self._reports: dict[Connection, int] = {}
        self._told: dict[int, Answer | Exit | Report] = {}  # exit reports by rank
        self._running: set[int] = set()
        self.processes: list[BaseProcess] = []
        try:
            for rank, cpu in enumerate(placement(nprocs)):
                self._start(rank, nprocs, cpu, fn, args, daemon)
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, size: int, cpu: int | None, fn: Callable[..., Any], args: tuple[Any, ...], daemon: bool) -> None:
        place = Place(rank, size, rank, size, 0, self._meeting.address, self._meeting.port)
        receiver, sender = self._multiprocessing.Pipe(duplex=False)
        # A Connection, because multiprocessing can pass one to a child in every start method.
        reader = Connection(self._lifeline.open_reader(), writable=False)
        forked = self._multiprocessing.get_start_method() == "fork"
        writer = self._lifeline.write_end if forked else -1
        task = Task(Work(fn, args), place, cpu, self._meeting.secret, reader, writer, sender)
        process = self._multiprocessing.Process(target=run, args=(task,), daemon=daemon, name=f"rank {rank}")
        with reader, sender:
            process.start()
        self.processes.append(process)
        self._reports[receiver] = rank
        self._running.add(rank)

    @property
    def sentinels(self) -> dict[int, int]:
        """By what multiprocessing.connection.wait() waits for: the ranks."""
        return {process.sentinel: rank for rank, process in enumerate(self.processes)}

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes if process.pid is not None]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """True when all ranks have ended well, False when `timeout` seconds passed before. Raises like `spawn`.

        grace_period: seconds between SIGTERM and SIGKILL for those that are ended because another failed.
        """
        if grace_period is not None:
            self._schedule.grace = grace_period
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._running:
            if deadline is not None and time.monotonic() >= deadline and not self._failures:
                return False
            self._turn(deadline if self._schedule.next() is None else self._schedule.next())
        self.close()
        if not self._failures:
            return True
        failure = cause(self._failures)
        raise failure.error() from _original(failure.report)

    def results(self) -> list[Any]:
        """What the ranks have returned, in their order; None of one that has called sys.exit(0). Once join() has given True.

        Raises RuntimeError before, ProcessError for what cannot be read in this process.
        """
        if self._running or self._failures:
            raise RuntimeError("not all ranks have succeeded: call results() after a join() that returns True")
        return [self._result(rank) for rank in range(len(self.processes))]

    def _result(self, rank: int) -> Any:
        told = self._told.get(rank)
        if not isinstance(told, Answer):
            return None
        try:
            return pickle.loads(told.pickled)
        except Exception as error:  # a user's class may raise anything
            raise ProcessError(f"the result of rank {rank} cannot be read here: {error}", rank) from error

    def _turn(self, until: float | None) -> None:
        sentinels = {self.processes[rank].sentinel: rank for rank in self._running}
        remaining = None if until is None else max(0.0, until - time.monotonic())
        ready = wait([*sentinels, *self._reports], remaining)
        for connection in [c for c in self._reports if c in ready]:  # before the exits: a report explains its rank's exit
            self._receive(connection)
        for sentinel in sentinels.keys() & set(ready):
            self._ended(sentinels[sentinel])
        for number in self._schedule.due():
            self._send(number)

    def _receive(self, connection: Connection) -> None:
        rank = self._reports[connection]
        try:
            told = connection.recv()
        except (EOFError, OSError):  # OSError: the report was cut off
            connection.close()
            del self._reports[connection]
            return
        self._told[rank] = told
        if isinstance(told, Report):
            self._fail(rank, told.code)

    def _ended(self, rank: int) -> None:
        self.processes[rank].join()
        self._running.discard(rank)
        for connection in [c for c, of in self._reports.items() if of == rank and c.poll()]:  # arrived meanwhile
            self._receive(connection)
        code = self.processes[rank].exitcode
        if code is None:
            code = getattr(self._told.get(rank), "code", None)
        if code != 0:
            self._fail(rank, code)
        elif self._running and not self._ending:
            self._meeting.ended(len(self.processes), rank, self.processes[rank].pid or 0, describe_exit(0))

    def _fail(self, rank: int, code: int | None) -> None:
        if self._ending or any(failure.rank == rank for failure in self._failures):
            return
        told = self._told.get(rank)
        report = told if isinstance(told, Report) else None
        self._failures.append(_Failure(rank, self.processes[rank].pid or 0, code, report))
        self._schedule.plan_end(self._failures)

    def _send(self, number: int) -> None:
        self._ending = True
        for rank in self._running:
            process = self.processes[rank]
            process.kill() if number == signal.SIGKILL else process.terminate()

    def close(self) -> None:
        """Ends the ranks that still run, then closes the store. Idempotent."""
        if self._running:
            self._send(signal.SIGTERM)
            self._schedule.plan((GRACE_S, signal.SIGKILL))
            while self._running:
                self._turn(self._schedule.next())
        for connection in self._reports:
            connection.close()
        self._reports.clear()
        self._lifeline.close()
        self._meeting.close()


def _original(report: Report | None) -> BaseException | None:
    if report is None or report.pickled is None:
        return None
    try:
        error = pickle.loads(report.pickled)
    except Exception:  # the exception's module can be imported only in the child
        return None
    return error if isinstance(error, BaseException) else None

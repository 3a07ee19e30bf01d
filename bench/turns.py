"""One cell of the comparison: the contenders take turns, forward and backward (A B C, C B A)."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import Any

from .collectives import COLLECTIVES
from .drive import Contender, ContenderFailed
from .harness import filling
from .peers.protocol import IN_PLACE, ITEM_BYTES
from .results import Timing

_MOST_CALLS = 20_000
_FEW = 400  # batches of at most so many calls time each call: the calls are long, so the clock's cost is negligible
_SINGLES = 1000
# Of the memory available: what all contenders' arrays may take together, and those of one while the others have none.
# The rest is for the libraries' own buffers and for the check, which holds what it expects.
_TOGETHER, _ALONE = 0.5, 0.35


@dataclass(frozen=True)
class Task:
    """What a cell measures. size: bytes of the whole array, 0 for a barrier."""

    operation: str
    size: int
    dtype: str
    writes: bool = False  # ranks write their inputs before each call

    def memory(self, ranks: int) -> int:
        """Bytes of one contender's arrays."""
        size = max(self.size, ITEM_BYTES[self.dtype] * ranks)
        if COLLECTIVES[self.operation].divided:
            return size * 2 * ranks if self.operation == "all_to_all" else size * (ranks + 1)
        return size * ranks * (1 if self.operation in IN_PLACE else 2)


@dataclass
class _Runner:
    """A contender in one cell. Times in microseconds."""

    contender: Contender
    wrong: int = 0
    calls: int = 1
    single: bool = False
    rounds: list[list[float]] = field(default_factory=list)
    singles: list[float] = field(default_factory=list)

    def batch(self) -> float:
        """Per call, of the slowest rank."""
        if self.single:
            return self._timed_singly(self.calls)
        return self._run(self.calls) / self.calls / 1e3

    def _run(self, calls: int) -> int:
        """Nanoseconds of the slowest rank."""
        return int(max(self.contender.ask("run", calls)))

    def _timed_singly(self, calls: int) -> float:
        times = self.contender.ask("singles", calls)
        self.singles += [max(ranks) / 1e3 for ranks in zip(*times, strict=True)]
        return max(map(sum, times)) / calls / 1e3

    def size_up(self) -> None:
        """How many calls fill a batch."""
        self.calls = filling(self._run, _MOST_CALLS)
        self.single = self.calls <= _FEW

    def finish(self) -> None:
        if not self.single:
            self._timed_singly(min(self.calls, _SINGLES))

    def timing(self) -> Timing:
        cuts = statistics.quantiles(self.singles, n=100, method="inclusive") if len(self.singles) > 1 else self.singles * 99
        p50, p95, p99 = (round(cuts[point], 4) for point in (49, 94, 98))
        return Timing(tuple(tuple(pair) for pair in self.rounds), self.calls, self.wrong, p50, p95, p99)


class Turns:
    """The contenders of one number of ranks. One that fails is given to `failed` and takes no further part."""

    def __init__(self, contenders: list[Contender], rounds: int,
                 failed: Callable[[Contender, ContenderFailed], None]) -> None:
        self.contenders, self.rounds, self.failed = contenders, rounds, failed

    def cell(self, task: Task, available: int) -> dict[str, Timing]:
        """Times of all that offer the operation and are alive at the end, by name.

        available: bytes of memory. Raises MemoryError, naming what is short, when not even one contender fits.
        """
        ranks, taking = self.contenders[0].size, self._taking(task)
        if task.memory(ranks) > _ALONE * available:
            raise MemoryError(f"needs {task.memory(ranks) >> 20} MiB of arrays, {available >> 20} MiB are available")
        together = task.memory(ranks) * len(taking) <= _TOGETHER * available
        runners = [_Runner(contender) for contender in taking]
        self._each(runners, lambda runner: self._prepare(runner, task, together))
        for _ in range(self.rounds):
            for runner in runners:
                runner.rounds.append([])
            self._each(runners + runners[::-1], lambda runner: self._turn(runner, task, together))
        self._each(runners, lambda runner: self._turn(runner, task, together, last=True))
        return {runner.contender.name: runner.timing() for runner in runners if runner.contender in self.contenders}

    def _taking(self, task: Task) -> list[Contender]:
        return [c for c in self.contenders if task.operation in c.kind.operations
                and (task.dtype in c.kind.dtypes or task.operation == "barrier")]

    def _each(self, runners: list[_Runner], action: Callable[[_Runner], Any]) -> None:
        for runner in runners:
            if runner.contender in self.contenders:
                try:
                    action(runner)
                except ContenderFailed as error:
                    self.contenders.remove(runner.contender)
                    self.failed(runner.contender, error)

    def _prepare(self, runner: _Runner, task: Task, together: bool) -> None:
        runner.wrong = sum(runner.contender.ask("prepare", *astuple(task)))
        runner.size_up()
        runner.singles.clear()
        if not together:
            runner.contender.ask("release")

    def _turn(self, runner: _Runner, task: Task, together: bool, last: bool = False) -> None:
        """A batch; the last time the single calls. Not together, the arrays exist for the turn alone."""
        ask = runner.contender.ask
        if not together:
            ask("arm", *astuple(task))
        if last:
            runner.finish()
        else:
            runner.rounds[-1].append(round(runner.batch(), 4))
        if last or not together:
            ask("release")

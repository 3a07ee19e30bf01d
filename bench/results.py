"""The results of the comparison, and their evaluation. Times in microseconds per call."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

OURS = "ours/"


@dataclass(frozen=True)
class Timing:
    """One contender in one cell: per round its two batches, as time per call of the slowest rank."""

    rounds: tuple[tuple[float, ...], ...]
    calls: int  # back to back in a batch
    wrong: int  # elements
    p50: float  # of single calls, slowest rank
    p95: float
    p99: float

    @property
    def batches(self) -> list[float]:
        return [time for pair in self.rounds for time in pair]

    @property
    def time(self) -> float:
        return statistics.median(self.batches)

    def joined(self, later: Timing) -> Timing:
        """With the rounds of a later launch; of the percentiles the higher ones."""
        return Timing(self.rounds + later.rounds, later.calls, self.wrong + later.wrong, max(self.p50, later.p50),
                      max(self.p95, later.p95), max(self.p99, later.p99))


def rivals(ours: str, names: Iterable[str], network: Container[str]) -> tuple[str, ...]:
    """The peers that one of arraycomm's contenders is compared with. network: the contenders that use sockets.

    arraycomm over a network is compared only with such peers: shared memory is always faster than sockets.
    """
    return tuple(name for name in names if not name.startswith(OURS) and (ours not in network or name in network))


@dataclass(frozen=True)
class Verdict:
    """One of ours beside the best of the peers that it is compared with. ratio: its time / ours; low and high: the range over the
    rounds, and this."""

    ours: str
    against: tuple[str, ...]
    best: str
    ratio: float
    low: float
    high: float
    wrong: int

    @property
    def word(self) -> str:
        if self.wrong:
            return "WRONG"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "unclear"


@dataclass(frozen=True)
class Cell:
    """One operation, size and number of ranks."""

    operation: str
    ranks: int
    size: int
    dtype: str
    timings: Mapping[str, Timing]

    def joined(self, later: Cell) -> Cell:
        """With the rounds of a later launch, for the contenders of both."""
        timings = {name: timing.joined(later.timings[name]) for name, timing in self.timings.items() if name in later.timings}
        return replace(later, timings=timings)

    def verdicts(self, network: Iterable[str]) -> list[Verdict]:
        """One verdict for each arraycomm contender that has a rival."""
        return [verdict for name in self.timings if name.startswith(OURS)
                if (verdict := self._verdict(name, set(network))) is not None]

    def _verdict(self, ours: str, network: set[str]) -> Verdict | None:
        against = rivals(ours, self.timings, network)
        if not against:
            return None
        best = min(against, key=lambda name: self.timings[name].time)
        own, theirs = self.timings[ours], self.timings[best]
        ratio = theirs.time / own.time
        ratios = [ratio, *(sum(peer) / sum(mine) for mine, peer in zip(own.rounds, theirs.rounds, strict=True))]
        wrong = own.wrong + sum(self.timings[name].wrong for name in against)
        return Verdict(ours, against, best, ratio, min(ratios), max(ratios), wrong)


@dataclass(frozen=True)
class Summary:
    """One arraycomm contender over many cells. mean: the geometric mean of the ratios."""

    ours: str
    against: tuple[str, ...]
    cells: int
    faster: int
    unclear: int
    slower: int
    wrong: int
    mean: float

    @classmethod
    def of(cls, ours: str, verdicts: Sequence[Verdict]) -> Summary:
        words = [verdict.word for verdict in verdicts]
        mean = math.exp(statistics.fmean(math.log(verdict.ratio) for verdict in verdicts))
        against = tuple(dict.fromkeys(name for verdict in verdicts for name in verdict.against))
        return cls(ours, against, len(words), words.count("faster"), words.count("unclear"), words.count("slower"),
                   words.count("WRONG"), mean)


def summaries(cells: Iterable[Cell], network: Iterable[str]) -> list[Summary]:
    """One summary for each arraycomm contender."""
    found: dict[str, list[Verdict]] = {}
    for cell in cells:
        for verdict in cell.verdicts(network):
            found.setdefault(verdict.ours, []).append(verdict)
    return [Summary.of(ours, verdicts) for ours, verdicts in found.items()]

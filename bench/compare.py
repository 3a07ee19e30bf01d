"""arraycomm-bench compare: our engine beside other libraries, interleaved in one run.

All contenders are alive at once and take turns (A B C, C B A), so that whatever the machine does meanwhile it does to
all of them. A ratio counts when its range over the rounds clears 1.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .drive import Contender, ContenderFailed, Start
from .options import TRANSPORTS, parse_size
from .peers.protocol import OPERATIONS
from .report import figure

PEERS = tuple(sorted(path.stem for path in (Path(__file__).parent / "peers").glob("[a-z]*.py")
                     if path.stem not in ("ours", "protocol")))  # fmt: skip
_SIZES = "8,1K,64K,1M,16M,256M"
_BATCH_NS = 20_000_000
_MOST_CALLS = 1000


@dataclass(frozen=True)
class Result:
    """One of ours beside one of theirs. Times in microseconds per call; ratio: theirs / ours, the median round's."""

    operation: str
    ranks: int
    size: int
    ours: str
    peer: str
    ours_time: float
    peer_time: float
    ratio: float
    low: float
    high: float
    wrong: int

    @property
    def verdict(self) -> str:
        if self.wrong:
            return f"{self.wrong} WRONG"
        if self.low > 1:
            return ""
        return "slower" if self.high < 1 else "unclear"


def _list(text: str, known: Sequence[str], what: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown {what} {name!r}; choose from {', '.join(known)}")
    return names


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="arraycomm-bench compare", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = made.add_argument
    add("--against", type=lambda text: _list(text, PEERS, "contender"), default=["gloo"], metavar="PEER,...",
        help=f"some of {', '.join(PEERS)} (gloo)")  # fmt: skip
    add("--np", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4], metavar="N,...",
        help="ranks (2,4)")  # fmt: skip
    add("--ops", type=lambda text: _list(text, OPERATIONS, "operation"), default=list(OPERATIONS), metavar="OP,...",
        help=f"some of {', '.join(OPERATIONS)} (all)")  # fmt: skip
    add("--sizes", type=lambda text: [parse_size(size) for size in text.split(",")], default=_SIZES, metavar="SIZE,...",
        help=f"bytes ({_SIZES})")  # fmt: skip
    add("--transport", type=lambda text: _list(text, TRANSPORTS, "transport"), default=["shm", "tcp"], metavar="T,...",
        help="ours, one contender each (shm,tcp)")  # fmt: skip
    add("--rounds", type=int, default=5, help="there and back through all contenders (5)")
    add("--python", action="append", default=[], metavar="PEER=PATH", help="another interpreter for a contender")
    add("--timeout", type=float, default=120.0, metavar="SECONDS", help="for one batch or start-up (120)")
    add("--json", metavar="FILE", help="the results as JSON")
    add("--csv", metavar="FILE", help="the results as CSV")
    return made


def main(arguments: list[str]) -> int:
    """Exit code 1 when data was wrong or a contender failed; being slower is a result, not a failure."""
    made = parser()
    given = made.parse_args(arguments)
    if min(given.np) < 1 or given.rounds < 1:
        made.error("--np and --rounds must be at least 1")
    if any("=" not in entry for entry in given.python):
        made.error("--python takes PEER=PATH")
    results: list[Result] = []
    print(f"# float32; us per call of the slowest rank, median of {2 * given.rounds} batches; ratio peer / ours, "
          f"median and range of {given.rounds} rounds")  # fmt: skip
    print(_HEADER, flush=True)
    try:
        for size in given.np:
            for result in compare(size, given):
                results.append(result)
                print(_line(result), flush=True)
    except ContenderFailed as error:
        print(f"arraycomm-bench compare: {error}", file=sys.stderr)
        return 1
    finally:
        _write(results, given.json, given.csv)
    print(_footer(results))
    return 1 if any(result.wrong for result in results) else 0


def compare(size: int, given: argparse.Namespace) -> Iterator[Result]:
    """Every cell of a world of `size` ranks."""
    pythons = dict(entry.split("=", 1) for entry in given.python)
    names = [f"ours/{transport}" for transport in given.transport] + given.against
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="arraycomm-bench-")))
        contenders = []
        for name in names:
            kind, _, transport = name.partition("/")
            environ = {"ARRAYCOMM_TRANSPORT": transport} if transport else {}
            start = Start(name, size, scratch, pythons.get(kind, sys.executable), environ, given.timeout)
            contenders.append(stack.enter_context(contextlib.closing(Contender(start))))
        for operation in given.ops:
            for size_bytes in [0] if operation == "barrier" else given.sizes:
                yield from _cell(operation, size_bytes, contenders, given.rounds)


def _cell(operation: str, size_bytes: int, contenders: list[Contender], rounds: int) -> Iterator[Result]:
    wrong = {c.name: sum(c.ask("prepare", operation, size_bytes)) for c in contenders}
    calls = {c.name: _calls(c) for c in contenders}
    times: dict[str, list[list[float]]] = {c.name: [] for c in contenders}
    for _ in range(rounds):
        turn: dict[str, list[float]] = {c.name: [] for c in contenders}
        for contender in contenders + contenders[::-1]:
            turn[contender.name].append(_batch(contender, calls[contender.name]))
        for name, pair in turn.items():
            times[name].append(pair)
    for contender in contenders:
        contender.ask("release")
    for ours in [c.name for c in contenders if c.name.startswith("ours/")]:
        for peer in [c.name for c in contenders if not c.name.startswith("ours/")]:
            yield _result(operation, contenders[0].size, size_bytes, ours, peer, times, wrong[ours] + wrong[peer])


def _result(operation: str, ranks: int, size_bytes: int, ours: str, peer: str, times: dict[str, list[list[float]]],
            wrong: int) -> Result:  # fmt: skip
    ratios = [sum(theirs) / sum(own) for own, theirs in zip(times[ours], times[peer], strict=True)]
    medians = [statistics.median(time for pair in times[name] for time in pair) for name in (ours, peer)]
    return Result(operation, ranks, size_bytes, ours, peer, medians[0], medians[1], statistics.median(ratios),
                  min(ratios), max(ratios), wrong)  # fmt: skip


def _batch(contender: Contender, calls: int) -> float:
    """Microseconds per call of the slowest rank."""
    return max(contender.ask("run", calls)) / calls / 1e3


def _calls(contender: Contender) -> int:
    """How many calls fill a batch, from ever longer trials: the first ones are slow."""
    calls = 1
    while True:
        fitting = int(_BATCH_NS / 1e3 / max(_batch(contender, calls), 1e-3))
        if calls >= _MOST_CALLS or fitting <= 4 * calls:
            return max(1, min(fitting, _MOST_CALLS))
        calls = min(fitting, 10 * calls, _MOST_CALLS)


_HEADER = (f"# {'operation':>14}  {'np':>3}  {'size':>10}  {'ours':>10}  {'time(us)':>9}  {'peer':>8}  "
           f"{'time(us)':>9}  {'ratio':>7}  {'low':>7}  {'high':>7}")  # fmt: skip


def _line(result: Result) -> str:
    times = f"{figure(result.ours_time, 9)}  {result.peer:>8}  {figure(result.peer_time, 9)}"
    ratios = "  ".join(figure(ratio, 7) for ratio in (result.ratio, result.low, result.high))
    return (f"{result.operation:>16}  {result.ranks:3}  {result.size:10}  {result.ours:>10}  {times}  {ratios}  "
            f"{result.verdict}").rstrip()  # fmt: skip


def _footer(results: list[Result]) -> str:
    counts = {verdict: sum(result.verdict == verdict for result in results) for verdict in ("", "unclear", "slower")}
    wrong = sum(result.wrong for result in results)
    return (f"# {len(results)} cells: {counts['']} faster, {counts['unclear']} unclear, {counts['slower']} slower\n"
            f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")  # fmt: skip


def _write(results: list[Result], json_path: str | None, csv_path: str | None) -> None:
    rows: list[dict[str, Any]] = [{**asdict(result), "verdict": result.verdict or "faster"} for result in results]
    if json_path:
        Path(json_path).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if csv_path and rows:
        with open(csv_path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

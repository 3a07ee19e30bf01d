"""`arraycomm-bench cliffs`: sizes that take longer than their neighbours promise.

Steps through powers of two, the sizes one element beside them, and odd ones. A size's time is divided by the straight line
between the times of the next smaller and the next larger size, and two sizes less than a percent apart by each other: well
above 1 is a cliff, where an algorithm, a copy or an alignment changes. The rounds go up and down through the sizes; the fastest
ones are compared, and each round by itself for the range. All sizes are parts of the same arrays: where memory lies, and on
pages of which size, would be cliffs of its own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .arguments import at_least, numbers, parse_size, parse_sizes, some_of
from .collectives import COLLECTIVES, Case
from .harness import slowest
from .worlds import run

_OPERATIONS = tuple(name for name in COLLECTIVES if name != "barrier")
_ODD = (7, 13, 100_003, 400_012, 1_000_003, (3 << 20) + 4)  # bytes; 400,012 is 100,003 float32
_BATCH_NS = 2_000_000
_WARMUP_NS = 60_000_000
_WARMUP_BYTES = 48 << 20  # while these move the engine tries its ways in turn
_CLOSE = 1.01  # sizes of such a ratio are the same to all but what makes a cliff

Times = dict[int, list[float]]  # bytes of the whole array -> us per call, of each round


def measure(transport: str, operations: Sequence[str], sizes: Sequence[int], rounds: int) -> dict[str, Times]:
    """A rank's part: the times of every operation."""
    import arraycomm

    os.environ["ARRAYCOMM_TRANSPORT"] = transport
    with arraycomm.init() as group:
        found = {operation: _measure(group, operation, sizes, rounds) for operation in operations}
        group.barrier()  # nobody leaves while another still times
    return found


def _measure(group: Any, operation: str, sizes: Sequence[int], rounds: int) -> Times:
    arrays = tuple(np.ones(group.size * max(sizes) // 4, np.float32) for _ in range(2))
    batches = dict(_batch(group, operation, size, arrays) for size in sizes)
    times: Times = {size: [] for size in batches}
    for turn in range(rounds):
        for size, one in list(batches.items())[:: -1 if turn % 2 else 1]:
            times[size].append(one())
    return times


def _batch(group: Any, operation: str, size: int, arrays: tuple[Any, ...]) -> tuple[int, Callable[[], float]]:
    """The bytes of the whole array, and what makes as many calls as fill a batch."""
    collective = COLLECTIVES[operation]
    dtype = "float32" if collective.reduces else "uint8"
    width = np.dtype(dtype).itemsize * (group.size if collective.divided else 1)
    case = Case(group.rank, group.size, max(1, size // width), dtype, "max" if collective.reduces else "", 0)
    sources = collective.sources(case)
    x = arrays[0].view(dtype)[: collective.given(case) or case.count]
    out = None if sources is None else arrays[1].view(dtype)[: sum(source.length for source in sources)]
    call = collective.call(group, x, out, case, case.op or None)
    slowest(group, call, max(4, min(_WARMUP_BYTES // max(size, 1 << 16), int(_WARMUP_NS / slowest(group, call, 2)))))
    calls = max(2, min(1000, int(_BATCH_NS / slowest(group, call, 4))))
    return case.count * width, lambda: slowest(group, call, calls) / 1e3


def default_sizes(largest: int) -> list[int]:
    """Powers of two with what lies four bytes, an element, beside them, and odd sizes."""
    powers = [1 << power for power in range(3, largest.bit_length()) if 1 << power <= largest]
    return sorted({*powers, *(size - 4 for size in powers if size > 64), *(size + 4 for size in powers[:-1]),
                   *(size for size in _ODD if size <= largest)})


def off_the_line(times: dict[int, float]) -> dict[int, float]:
    """Each size's time over the line between its neighbours; the first and the last have none."""
    found, sizes = {}, sorted(times)
    for before, size, after in zip(sizes, sizes[1:], sizes[2:], strict=False):
        line = times[before] + (times[after] - times[before]) * (size - before) / (after - before)
        found[size] = times[size] / line
    return found


def steps(times: dict[int, float]) -> dict[int, float]:
    """Of two sizes that are nearly the same, the longer time over the shorter; by the larger size."""
    sizes = sorted(times)
    return {after: max(times[after] / times[before], times[before] / times[after])
            for before, after in pairwise(sizes) if after / before < _CLOSE}


def cliffs(times: dict[int, float]) -> dict[int, float]:
    """The higher of both."""
    line, step = off_the_line(times), steps(times)
    return {size: max(line.get(size, 0.0), step.get(size, 0.0)) for size in sorted({*line, *step})}


class Found(NamedTuple):
    """A size's cliff by the fastest rounds, and the lowest and highest of the rounds."""

    size: int
    ratio: float
    low: float
    high: float


def judged(times: Times) -> list[Found]:
    """Every size that has a neighbour, by size."""
    fastest = cliffs({size: min(rounds) for size, rounds in times.items()})
    each = [cliffs(dict(zip(times, turn, strict=True))) for turn in zip(*times.values(), strict=True)]
    return [Found(size, ratio, min(turn[size] for turn in each), max(turn[size] for turn in each))
            for size, ratio in fastest.items()]


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="arraycomm-bench cliffs", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=numbers(1), default=(2, 4), help="numbers of ranks (2,4)")
    parser.add_argument("--transport", type=some_of(("shm", "tcp"), "transport"), default=("shm",), help="some of shm, tcp (shm)")
    parser.add_argument("--ops", type=some_of(_OPERATIONS, "operation"), default=_OPERATIONS, help="operations (all with data)")
    parser.add_argument("--sizes", type=parse_sizes, help="bytes of the whole array, instead of those")
    parser.add_argument("-e", "--maxbytes", type=parse_size, default="8M", help="the largest of those (8M)")
    parser.add_argument("--rounds", type=at_least(1), default=7, help="of which the fastest counts (7)")
    parser.add_argument("--above", type=float, default=1.3, help="what is shown (1.3); 0 shows all")
    given = parser.parse_args(arguments)
    sizes = given.sizes or default_sizes(given.maxbytes)
    print(f"# above {given.above:g}: ratio (range of the rounds); us of smaller, this, larger size; then the highest of each")
    worst: dict[str, dict[str, Found | None]] = {operation: {} for operation in given.ops}
    for ranks in given.np:
        for transport in given.transport:
            for operation, times in _world(ranks, transport, given.ops, sizes, given.rounds).items():
                found = judged(times)
                _show(f"{ranks} {transport:4} {operation:15}", times, [one for one in found if one.ratio > given.above])
                worst[operation][f"{transport}, {ranks} ranks"] = max(found, key=lambda one: one.ratio, default=None)
    print(_table(worst))
    return 0


def _world(ranks: int, transport: str, operations: Sequence[str], sizes: Sequence[int], rounds: int) -> dict[str, Times]:
    found = run(ranks, measure, transport, operations, sizes, rounds)
    return {operation: {int(size): rounds for size, rounds in times.items()} for operation, times in found.items()}


def _show(where: str, times: Times, shown: list[Found]) -> None:
    sizes = sorted(times)
    for one in shown:
        place = sizes.index(one.size)
        around = " ".join(f"{min(times[other]):.2f} ({other})" for other in sizes[max(place - 1, 0):place + 2])
        print(f"{where} {one.size:9} {_figure(one)}   {around}", flush=True)


def _figure(one: Found) -> str:
    return f"{one.ratio:.2f} ({one.low:.2f}-{one.high:.2f})"


def _table(worst: dict[str, dict[str, Found | None]]) -> str:
    """Each operation's highest ratio, as Markdown; "-" where no size has a neighbour."""
    columns = list(next(iter(worst.values())))
    rows = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for operation, found in worst.items():
        cells = (f"{_figure(one)} at {one.size:,} B" if one else "-" for one in map(found.get, columns))
        rows.append(f"| {operation} | " + " | ".join(cells) + " |")
    return "\n".join(rows)

"""arraycomm-bench startup: measures the time of init() and close() for N ranks of this host."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import arraycomm
from arraycomm.launch.spawn import spawn

from .arguments import at_least, numbers

_MODULES = ("arraycomm.backends.socket", "arraycomm.core.bootstrap.rendezvous")  # those that init() loads

_Span = tuple[int, int]  # of a call on one rank: its begin and end, ns


def _rank(rank: int, together: Any, modules: Sequence[str], times: int) -> list[_Span]:
    """Calls init() and close() alternately. together: a barrier of the ranks, at which each call begins."""
    found: list[_Span] = []

    def timed(call: Callable[[], Any]) -> Any:
        together.wait()
        begin = time.monotonic_ns()
        result = call()
        found.append((begin, time.monotonic_ns()))
        return result

    for name in modules:
        importlib.import_module(name)
    for _ in range(times):
        group = timed(arraycomm.init)
        timed(group.close)
    return found


def _in_ms(call: Sequence[_Span]) -> tuple[float, float]:
    """Of the slowest rank, from its entry to its return; from the first entry to the last return."""
    first = min(begin for begin, _ in call)
    return max(end - begin for begin, end in call) / 1e6, max(end - first for _, end in call) / 1e6


def measure(size: int, repeats: int, again: int) -> dict[str, list[tuple[float, float]]]:
    """Times by call: init with and without the loading of its modules, then `again` times more in each process."""
    found: dict[str, list[tuple[float, float]]] = {"init, first": [], "init, modules loaded": [], "init, again": [], "close": []}
    for _ in range(repeats):
        for what, modules in (("init, first", ()), ("init, modules loaded", _MODULES)):
            together = multiprocessing.get_context("spawn").Barrier(size)
            calls = list(zip(*spawn(_rank, (together, modules, 1 + again), size), strict=True))
            found[what].append(_in_ms(calls[0]))
            found["init, again"] += map(_in_ms, calls[2::2])
            found["close"] += map(_in_ms, calls[1::2])
    return found


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="arraycomm-bench startup", description=__doc__)
    parser.add_argument("--np", type=numbers(1), default=(2, 64), help="numbers of ranks (2,64)")
    parser.add_argument("--repeats", type=at_least(1), default=5, help="worlds of new processes for each kind (5)")
    parser.add_argument("--again", type=at_least(0), default=3, help="further worlds in the same processes (3)")
    given = parser.parse_args(arguments)
    print("# ms, median (lowest to highest); slowest: of one rank; whole: from the first entry to the last return")
    print(f"{'ranks':>5}  {'':22}{'slowest':>24}{'whole':>24}")
    for size in given.np:
        for what, times in measure(size, given.repeats, given.again).items():
            columns = [sorted(column) for column in zip(*times, strict=True)]
            print(f"{size:5}  {what:22}" + "".join(f"{median(c):9.1f} ({c[0]:.1f} to {c[-1]:.1f})".rjust(24)
                                                  for c in columns), flush=True)
    return 0

"""arraycomm-bench startup: measures the time of init() and close() for N ranks of this host."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack, closing
from statistics import median
from typing import NamedTuple

from arraycomm.launch.environ import Place
from arraycomm.launch.nodes import Meeting, meet

from .arguments import at_least, numbers

# A rank starts, prints a line, and then calls init() and close() alternately, one for each line of its input.
_RANK = """
import sys, time
sys.path[:] = filter(None, sys.path)  # not the current folder: it may be a clone, whose package has no engine
import arraycomm
if {loaded}:
    import arraycomm.backends.socket, arraycomm.core.bootstrap.rendezvous
def timed(call):
    if not sys.stdin.readline():
        sys.exit()
    begin = time.monotonic_ns()
    result = call()
    print(begin, time.monotonic_ns(), flush=True)
    return result
print(flush=True)
for _ in range({times}):
    group = timed(arraycomm.init)
    timed(group.close)
"""


class _Time(NamedTuple):
    """One call on all ranks, ms."""

    slowest: float  # of one rank, from its entry to its return
    whole: float  # from the first entry to the last return


class _Ranks:
    """The processes of one world; a context manager that waits for their end."""

    def __init__(self, meeting: Meeting, size: int, program: str) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        descriptors = () if meeting.secret_fd is None else (meeting.secret_fd,)
        for rank in range(size):
            place = Place(rank, size, rank, size, 0, meeting.address, meeting.port)
            self._processes.append(subprocess.Popen(
                [sys.executable, "-c", program], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, **place.variables(meeting.secret_fd)}, pass_fds=descriptors))

    def __enter__(self) -> _Ranks:
        self._answers()  # all have started
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for process in self._processes:
            if kind:
                process.kill()  # it may wait for a peer that failed
            process.communicate(timeout=60)

    def _answers(self) -> list[list[int]]:
        lines = [process.stdout.readline() for process in self._processes if process.stdout]
        if not all(lines):
            raise RuntimeError("a rank ended early; see what it printed")
        return [[int(word) for word in line.split()] for line in lines]

    def call(self) -> _Time:
        for process in self._processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        times = self._answers()
        first = min(begin for begin, _ in times)
        return _Time(max(end - begin for begin, end in times) / 1e6, max(end - first for _, end in times) / 1e6)


def measure(size: int, repeats: int, again: int) -> dict[str, list[_Time]]:
    """Times by call: init with and without the loading of its modules, then `again` times more in each process."""
    found: dict[str, list[_Time]] = {"init, first": [], "init, modules loaded": [], "init, again": [], "close": []}
    for repeat in range(2 * repeats):
        loaded = repeat % 2 == 1
        with ExitStack() as stack:
            meeting = stack.enter_context(closing(meet(1, 0, size)))
            ranks = stack.enter_context(_Ranks(meeting, size, _RANK.format(loaded=loaded, times=1 + again)))
            for turn in range(1 + again):
                what = "init, again" if turn else "init, modules loaded" if loaded else "init, first"
                found[what].append(ranks.call())
                found["close"].append(ranks.call())
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

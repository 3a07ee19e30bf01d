"""`arraycomm-bench safety`: what the engine's safety costs while it runs.

Groups of the same processes take turns, there and back: one as it is, the same once more, whose ratio is the noise, and one that
does not compare operations. Then the first one beside a world that sends a hundred times as many heartbeats, and without it:
what that costs, divided by a hundred, is what heartbeats cost.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from .arguments import at_least, numbers, parse_sizes, some_of
from .collectives import COLLECTIVES, Call, Case
from .harness import slowest
from .worlds import environment, run

_OPERATIONS = ("all_reduce", "sendrecv")
_NAMES = ("as it is", "again", "no comparison", "calm", "100 heartbeats/s")
_SHOWN = ((0, 1), (0, 2), (4, 3))  # which times are divided
_BATCH_NS = 5_000_000
_WARMUP_NS = 50_000_000
_WARMUP = 40  # calls; the engine tries its ways first
_WIDTH = 4  # float32

Times = list[list[float]]  # us per call, by round and name


def measure(transport: str, sizes: tuple[int, ...], rounds: int) -> dict[str, Times]:
    """A rank's part: the times of every operation and size."""
    import arraycomm

    os.environ["ARRAYCOMM_TRANSPORT"] = transport
    found: dict[str, Times] = {}
    with arraycomm.init() as world:
        groups = [world.split(0), world.split(0)]
        with environment({"ARRAYCOMM_CHECK": "0"}):
            groups.append(world.split(0))
        cells = {f"{operation} {size}": _batches(groups, operation, size) for operation in _OPERATIONS for size in sizes}
        for turn in range(rounds):
            for name, batches in cells.items():
                both = [one() for one in batches + batches[::-1]]
                times = [min(both[i], both[-1 - i]) for i in range(len(groups))]
                found.setdefault(name, []).append(times + _beside_heartbeats(f"{turn} {name}", batches[0]))
        world.barrier()  # no rank leaves while another one still measures
    return found


def _beside_heartbeats(name: str, one: Callable[[], float]) -> list[float]:
    """Without and with them."""
    import arraycomm

    calm = one()
    with environment({"ARRAYCOMM_HEARTBEAT": "0.01"}):
        beside = arraycomm.init(name=name)
    with beside:
        busy = min(one(), one())
    return [min(calm, one()), busy]


def _batches(groups: list[Any], operation: str, size: int) -> list[Callable[[], float]]:
    """A batch of each group: us per call."""
    arrays = tuple(np.ones(max(1, size // _WIDTH), np.float32) for _ in range(2))
    return [_batch(group, _call(group, operation, arrays)) for group in groups]


def _call(group: Any, operation: str, arrays: tuple[Any, ...]) -> Call:
    x, out = arrays
    case = Case(group.rank, group.size, len(x), "float32", "max", 0)  # of ones it stays what it is
    return COLLECTIVES[operation].call(group, x, x if operation == "all_reduce" else out, case, "max")


def _batch(group: Any, call: Call) -> Callable[[], float]:
    """What makes as many calls as fill a batch."""
    for _ in range(max(4, min(_WARMUP, int(_WARMUP_NS / slowest(group, call, 2))))):
        call()
    calls = max(2, min(2000, int(_BATCH_NS / slowest(group, call, 8))))
    return lambda: slowest(group, call, calls) / 1e3


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="arraycomm-bench safety", description=__doc__)
    parser.add_argument("--np", type=numbers(1), default=(2, 4), help="numbers of ranks (2,4)")
    parser.add_argument("--transport", type=some_of(("shm", "tcp"), "transport"), default=("shm", "tcp"),
                        help="some of shm, tcp (both)")
    parser.add_argument("--sizes", type=parse_sizes, default="8,64K,1M,16M", help="bytes of the array (8,64K,1M,16M)")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="of which the median counts (5)")
    given = parser.parse_args(arguments)
    print("# us per call as it is; then ratios of times: median (lowest to highest) of the rounds")
    heads = [f"{_NAMES[over]} / {_NAMES[under]}" for over, under in _SHOWN]
    print(f"{'ranks':>5} {'':6}{'':22}{'us':>10}" + "".join(f"{head:>26}" for head in heads))
    for ranks in given.np:
        for transport in given.transport:
            for cell, times in run(ranks, measure, transport, given.sizes, given.rounds).items():
                print(f"{ranks:5} {transport:6}{cell:22}{_row(times)}", flush=True)
    return 0


def _row(times: Times) -> str:
    shown = f"{median(row[0] for row in times):10.1f}"
    for over, under in _SHOWN:
        ratios = sorted(row[over] / row[under] for row in times)
        shown += f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})".rjust(26)
    return shown

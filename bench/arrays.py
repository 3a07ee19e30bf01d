"""arraycomm-bench arrays: measures the time of a call with torch and JAX arrays relative to NumPy arrays.

The libraries take turns in the same processes and the same group, forward and back. "given": the caller passes the output array
(for JAX, whose arrays are immutable, a NumPy array). "new": the call allocates the result. "numpy again" shows the noise.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

from .arguments import at_least, numbers, parse_sizes
from .frameworks import open_framework
from .harness import slowest
from .worlds import run

_LIBRARIES = ("torch", "jax")
_FORMS = ("given", "new")
_BATCH_NS = 10_000_000
_WIDTH = 4  # float32

Times = list[list[float]]  # us per call, by round and name


def measure(names: tuple[str, ...], sizes: tuple[int, ...], rounds: int) -> dict[str, Times]:
    """A rank's part: the times of every size and form."""
    import arraycomm

    found: dict[str, Times] = {}
    with arraycomm.init() as group:
        cells = {f"{size:9} B {form}": [_batch(group, _call(group, name, size, form)) for name in names]
                 for size in sizes for form in _FORMS}
        for _ in range(rounds):
            for cell, runs in cells.items():
                both = [one() for one in runs + runs[::-1]]
                found.setdefault(cell, []).append([min(both[i], both[-1 - i]) for i in range(len(runs))])
        group.barrier()  # no rank leaves while another rank still measures
    return found


def _call(group: Any, name: str, size: int, form: str) -> Callable[[], Any]:
    library = open_framework(name.partition(" ")[0])
    x, out = library.array(np.ones(max(1, size // _WIDTH), np.float32)), np.ones(max(1, size // _WIDTH), np.float32)
    if form == "new":
        return partial(group.all_reduce, x, "max")
    return partial(group.all_reduce, x, "max", out=out if library.immutable else library.array(out))


def _batch(group: Any, call: Callable[[], Any]) -> Callable[[], float]:
    """A function that times one batch of calls: us per call of the slowest rank."""
    slowest(group, call, 20)
    calls = max(4, min(20_000, int(_BATCH_NS / slowest(group, call, 20))))
    return lambda: slowest(group, call, calls) / 1e3


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="arraycomm-bench arrays", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=numbers(1), default=(1, 2), help="numbers of ranks (1,2)")
    parser.add_argument("--sizes", type=parse_sizes, default="8,1M", help="sizes of the array in bytes (8,1M)")
    parser.add_argument("--rounds", type=at_least(1), default=9, help="number of rounds; the median is reported (9)")
    given = parser.parse_args(arguments)
    names = ("numpy", "numpy again", *_present())
    print("# all_reduce: us per call with NumPy's arrays; additional us of the others, median (lowest to highest) of the rounds")
    print(f"ranks {'':17}{'numpy':>9}" + "".join(f"{name:>25}" for name in names[1:]))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for ranks in given.np:
        for cell, times in run(ranks, measure, names, given.sizes, given.rounds).items():
            print(f"{ranks:5} {cell:17}{_row(times)}", flush=True)
    return 0


def _present() -> tuple[str, ...]:
    """The installed libraries, at least one; prints a notice for each missing library."""
    present = tuple(name for name in _LIBRARIES if find_spec(name) is not None)
    if not present:
        raise ModuleNotFoundError("`arrays` compares other libraries' arrays with NumPy's, and there are none: "
                                  + " or ".join(f"pip install {name}" for name in _LIBRARIES))
    for name in _LIBRARIES:
        if name not in present:
            print(f"# {name} is skipped, because it is not installed: pip install {name}")
    return present


def _row(times: Times) -> str:
    shown = f"{median(row[0] for row in times):9.2f}"
    for column in range(1, len(times[0])):
        more = sorted(row[column] - row[0] for row in times)
        shown += f"{median(more):+.2f} ({more[0]:+.2f} to {more[-1]:+.2f})".rjust(25)
    return shown

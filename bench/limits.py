"""arraycomm-bench limits: what this machine can do, and the times of collectives by a model that is made of it.

It takes some 20 s and wants the machine for itself. `compare --limits FILE` shows these times.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from datetime import datetime

from .arguments import numbers, parse_sizes
from .compare import SIZES, tasks
from .machine import cache_bytes, measure
from .model import Limits, write
from .peers.protocol import OPERATIONS
from .report import figure

_ROWS = (
    ("a call from Python into C", "{call} us"),
    ("round trip, shared memory, polled", "{shared_memory_ping} us"),
    ("round trip, AF_UNIX, polled", "{unix_ping_polled} us"),
    ("round trip, AF_UNIX, blocking", "{unix_ping_blocking} us"),
    ("round trip, TCP loopback, polled", "{tcp_ping_polled} us"),
    ("round trip, TCP loopback, blocking", "{tcp_ping_blocking} us"),
    ("switch of processes by sched_yield", "{switch} us"),
    ("AF_UNIX, one way", "{unix} GB/s"),
    ("TCP loopback, one way", "{tcp} GB/s"),
    ("process_vm_readv, huge pages", "{single_copy} GB/s"),
    ("process_vm_readv, 4 KiB pages", "{single_copy_4k} GB/s"),
    ("process_vm_readv, a call", "{single_copy_call} us"),
)
_PLACES = (("L2", "l2"), ("L3", "l3"), ("memory, huge pages", "memory"), ("memory, 4 KiB pages", "memory_4k"))
_UNKNOWN = "not available"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="arraycomm-bench limits", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--np", type=numbers(1), default=(2, 4, 8), metavar="N,...",
        help="ranks to print times for (2,4,8)")
    add("--sizes", type=parse_sizes, default=SIZES, metavar="SIZE,...",
        help=f"bytes ({SIZES})")
    add("--json", metavar="FILE", help="the figures, for compare --limits")
    return made


def main(arguments: list[str]) -> int:
    """The exit code: 0."""
    given = parser().parse_args(arguments)
    limits = Limits(len(os.sched_getaffinity(0)), cache_bytes(2), cache_bytes(3), measure())
    for line in [*machine_lines(limits), "", *model_lines(limits, given.np, given.sizes)]:
        print(line)
    if given.json:
        write(given.json, limits, {"machine": platform.platform(), "time": datetime.now().isoformat(timespec="seconds")})
    return 0


def machine_lines(limits: Limits) -> list[str]:
    """The figures in words."""
    shown = {name: _UNKNOWN if value is None else f"{value:.3g}" for name, value in limits.figures.items()}
    lines = [f"# {limits.cpus} processors, L2 {limits.l2 >> 10} KiB, L3 {limits.l3 >> 20} MiB"]
    for what, text in _ROWS:
        value = text.format_map(shown)
        lines.append(f"{what:38}{_UNKNOWN if value.startswith(_UNKNOWN) else value}")
    lines.append(f"{'GB/s of one process':38}{'copy':>8}{'a += b':>8}{'  (with all processors at it)'}")
    for what, place in _PLACES:
        alone, together = ([shown[f"{kind}_{place}{suffix}"] for kind in ("copy", "sum")] for suffix in ("", "_together"))
        lines.append(f"{what:38}{alone[0]:>8}{alone[1]:>8}  ({together[0]}, {together[1]})")
    return lines


def model_lines(limits: Limits, ranks: Sequence[int], sizes: Sequence[int]) -> list[str]:
    """A table of the model's times over shared memory, in microseconds."""
    head = "".join(f"  {f'np {n}':>9}" for n in ranks)
    lines = ["# times over shared memory by the model, us", f"# {'operation':>14}  {'size':>10}{head}"]
    for task in tasks(OPERATIONS, sizes, "float32"):
        times = "".join("  " + figure(limits.time(task.operation, task.size, n), 9) for n in ranks)
        lines.append(f"{task.operation:>16}  {task.size:10}{times}")
    return lines

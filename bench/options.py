"""The command line of arraycomm-bench: nccl-tests' short options, and arraycomm's long options."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from arraycomm.core.base.command import add_version

from .arguments import at_least, parse_size, plot_file, some_of
from .collectives import COLLECTIVES
from .data import DTYPES, OPS, SHORT_NAMES

_AVERAGES = "0 rank 0, 1 average, 2 minimum, 3 maximum over ranks"
FRAMEWORKS = ("numpy", "jax", "torch")
TRANSPORTS = ("auto", "shm", "tcp")


def sizes(options: argparse.Namespace) -> list[int]:
    """Every size from the smallest to the largest."""
    found = [options.min_bytes]
    while True:
        last = found[-1]
        following = last * options.step_factor if options.step_factor else last + options.step_bytes
        if following > options.max_bytes or following == last:
            return found
        found.append(following)


def require_writable(path: str) -> None:
    """Raises ValueError with the reason if the file cannot be written at the end."""
    folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder):
        raise ValueError(f"cannot write {path!r}: there is no folder {folder!r}")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise ValueError(f"cannot write {path!r}: it is a folder, or not ours to write")


def _some(known: dict[str, str], what: str) -> Callable[[str], tuple[str, ...]]:
    """A type for comma-separated names in their command-line spelling, or "all"."""
    return some_of((), what, {**{name: (ours,) for name, ours in known.items()}, "all": tuple(dict.fromkeys(known.values()))})


def _root(text: str) -> int:
    if not re.fullmatch(r"all|-1|\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank; write a number from 0, or all")
    return -1 if text == "all" else int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text) or float(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return float(text)


def parser(others: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser of the measuring command. others: subcommands, which have their own, and what they do."""
    made = argparse.ArgumentParser(
        prog="arraycomm-bench",
        usage="%(prog)s OPERATION [-b SIZE] [-e SIZE] [-f FACTOR] [--nproc N] [more options, see --help]",
        description="Times collectives as nccl-tests does and checks every result.",
        epilog="A rank is a process: --nproc replaces -t and -g of nccl-tests.\n"
        "Exit code: 1 if a value was wrong or a rank failed, 2 if nothing could be measured.\n\n"
        "subcommands, each with its own --help:\n"
        + "\n".join(f"  arraycomm-bench {name:8} {does}" for name, does in others.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("operations", type=_some({name: name for name in COLLECTIVES}, "operation"), metavar="OPERATION",
        help=f"all, or some of {', '.join(COLLECTIVES)}")
    add("--nproc", type=at_least(1), metavar="N", help="ranks to start, unless a launcher (mpirun, torchrun) has (2)")
    _add_nccl_options(made)
    add("--batches", type=at_least(1), default=5, metavar="N", help="batches per size; the median is reported (5)")
    add("--percentiles", action="store_true", help="measure p50, p95 and p99 of single calls")
    add("--framework", choices=FRAMEWORKS, default="numpy", help="library of the arrays (numpy)")
    add("--backend", metavar="NAME", help="backend of the group (the group's own choice)")
    add("--transport", choices=TRANSPORTS, help="sets ARRAYCOMM_TRANSPORT for the ranks")
    add("--timeout", type=_seconds, metavar="SECONDS", help="timeout of every operation (ARRAYCOMM_TIMEOUT)")
    add("--plot", metavar="FILE", type=plot_file, help="plot latency and bandwidth, .svg or .png")
    add_version(made)
    return made


def _add_nccl_options(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add("-b", "--minbytes", dest="min_bytes", type=parse_size, default=8, metavar="SIZE", help="smallest size (8)")
    add("-e", "--maxbytes", dest="max_bytes", type=parse_size, metavar="SIZE", help="largest size (64M)")
    add("-f", "--stepfactor", dest="step_factor", type=at_least(1), metavar="FACTOR", help="factor between sizes (4)")
    add("-i", "--stepbytes", dest="step_bytes", type=parse_size, metavar="SIZE", help="increment between sizes, without -f (1M)")
    add("-o", "--op", type=_some(OPS, "reduction"), default=("sum",), dest="ops", metavar="OP",
        help=f"all, or some of {', '.join(OPS)} (sum)")
    add("-d", "--datatype", type=_some({**SHORT_NAMES, **{name: name for name in DTYPES}}, "datatype"), default=("float32",),
        dest="dtypes", metavar="TYPE", help=f"all, or some of {', '.join((*SHORT_NAMES, *DTYPES))} (float)")
    add("-r", "--root", type=_root, default=0, metavar="RANK", help="root of rooted operations; all or -1: each rank in turn (0)")
    add("-n", "--iters", type=at_least(1), default=0, dest="calls", metavar="N",
        help="calls per batch (as many as fit into 20 ms, at most 1000)")
    add("-w", "--warmup_iters", type=at_least(0), default=5, dest="warmup", metavar="N", help="calls before the first batch (5)")
    add("-c", "--check", type=at_least(0), default=1, dest="checks", metavar="N",
        help="number of checks of each result; 0: no check (1)")
    add("-a", "--average", type=int, choices=range(4), default=3, help=f"which rank's time counts: {_AVERAGES} (3)")
    add("-J", "--output_file", "--json", dest="json", metavar="FILE", help="write the measurements as JSON")


def parse(arguments: list[str], others: Mapping[str, str] = MappingProxyType({})) -> argparse.Namespace:
    """What one run measures: the options of a command line, sizes in bytes; step_factor 0: steps of step_bytes. Leaves by
    SystemExit(2) with the usage on a wrong one."""
    made = parser(others)
    given = made.parse_args(arguments)
    if given.max_bytes is None:
        given.max_bytes = max(64 << 20, given.min_bytes)
    if given.max_bytes < given.min_bytes:
        made.error(f"-e {given.max_bytes} is less than -b {given.min_bytes}: give the smallest size first")
    additive = given.step_factor == 1 or (given.step_factor is None and given.step_bytes is not None)
    if additive and given.step_bytes == 0:
        made.error("-i 0 never reaches the largest size")
    if not additive and given.min_bytes == 0:
        made.error("-b 0 never grows by a factor: start at 1 or more, or use -i")
    given.step_factor = 0 if additive else given.step_factor or 4
    given.step_bytes = given.step_bytes or 1 << 20
    return given

"""`arraycomm-run`: starts one process per rank on this node, hosts the store on node 0, and ends them together."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..core.errors import DistError
from .environ import SECRET_VARIABLES, Place
from .nodes import Meeting, meet
from .run import Job, Plan

DEFAULT_PORT = 29500  # torchrun's; only for several nodes, one node takes a free port


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: the first failing rank's, 128 + n where it was signal n, 1 or 2 where the launch itself failed."""
    options = _parse(arguments)
    try:
        with meet(options.nnodes, options.node_rank, options.nproc_per_node, options.master_addr,
                  options.master_port) as meeting:
            code = Job(_plan(options, meeting)).run()
            meeting.leave(code)
            return code
    except (DistError, OSError, ValueError) as error:
        print(f"arraycomm-run: {error}", file=sys.stderr)
        return 1


def _plan(options: argparse.Namespace, meeting: Meeting) -> Plan:
    if options.log_dir is not None:
        options.log_dir.mkdir(parents=True, exist_ok=True)
    base = _base_environ(options.nproc_per_node)
    local = options.nproc_per_node
    environs = []
    for index in range(local):
        place = Place(options.node_rank * local + index, options.nnodes * local, index, local, options.node_rank,
                      meeting.address, meeting.port)
        environs.append({**base, **place.variables(meeting.secret_fd)})
    inherit = () if meeting.secret_fd is None else (meeting.secret_fd,)
    return Plan(_command(options), environs, inherit, prefix=options.prefix, log_dir=options.log_dir)


def _base_environ(nproc: int) -> dict[str, str]:
    base = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    if nproc > 1 and "OMP_NUM_THREADS" not in base:
        # Every rank would start a thread per core. torchrun decides the same and says so too.
        print("arraycomm-run: OMP_NUM_THREADS is not set; the ranks get OMP_NUM_THREADS=1", file=sys.stderr)
        base["OMP_NUM_THREADS"] = "1"
    return base


def _command(options: argparse.Namespace) -> list[str]:
    program = [options.program, *options.arguments]
    if options.no_python:
        if shutil.which(options.program) is None:
            raise ValueError(f"there is no program {options.program!r} to run")
        return program
    if not options.module and not Path(options.program).exists():
        raise ValueError(f"there is no script {options.program!r} (a module needs -m, another program --no-python)")
    # Unbuffered, because behind a pipe Python keeps 8 KiB back, and loses them when it is killed.
    return [sys.executable, "-u", *(["-m"] if options.module else []), *program]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="arraycomm-run", description=__doc__, allow_abbrev=False,
        epilog="Underscores work too (--nproc_per_node). Example: arraycomm-run --nproc-per-node 4 train.py --epochs 3")
    _add_options(parser)
    options = parser.parse_args(arguments)
    if options.node_rank >= options.nnodes:
        parser.error(f"--node-rank {options.node_rank} is not below --nnodes {options.nnodes}")
    if options.nnodes > 1 and options.master_addr is None:
        parser.error("--nnodes > 1 needs --master-addr, an address of node 0 that all nodes reach")
    if options.nnodes > 1 and options.master_port == 0:
        options.master_port = DEFAULT_PORT
    if options.module and options.no_python:
        parser.error("-m and --no-python exclude each other")
    return options


def _add_options(parser: argparse.ArgumentParser) -> None:
    def add(name: str, **settings: object) -> None:
        names = [name, name[:2] + name[2:].replace("-", "_")]
        parser.add_argument(*dict.fromkeys(names), **settings)  # type: ignore[arg-type]

    add("--nproc-per-node", type=_nproc, default=1, metavar="N", help="ranks on this node, or cpu: one per core")
    add("--nnodes", type=_at_least(1), default=1, metavar="N", help="number of nodes; start the launcher on each")
    add("--node-rank", type=_at_least(0), default=0, metavar="R", help="this node's number, from 0")
    add("--master-addr", metavar="ADDRESS", help="address of node 0 (default: loopback, one node only)")
    add("--master-port", type=_at_least(0), default=0, metavar="PORT",
        help=f"port of the store on node 0 (default: a free one; for several nodes {DEFAULT_PORT})")
    add("--log-dir", type=Path, metavar="DIR", help="also write each rank's output to DIR/rank-R.log")
    add("--no-prefix", dest="prefix", action="store_false", help="pass output on without [rank R] before each line")
    add("--no-python", action="store_true", help="the program is started itself, not by Python")
    parser.add_argument("-m", "--module", action="store_true", help="the program is a Python module's name")
    parser.add_argument("program", help="script, module or program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def _nproc(text: str) -> int:
    return len(os.sched_getaffinity(0)) if text == "cpu" else _at_least(1)(text)


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdigit() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {minimum}")
        return int(text)

    return parse


if __name__ == "__main__":
    sys.exit(main())

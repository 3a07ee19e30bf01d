"""`arraycomm-run`: starts one process per rank on this node, hosts the store on node 0, and ends them together."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..core.base.command import add_version, command
from .jax import launch_jax
from .job import DEFAULT_PORT, check, launch, nproc, port


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: the first failing rank's, 128 + n where it was signal n, 1 or 2 where the launch itself failed."""
    options = _parse(arguments)
    if options.as_gloo:
        os.environ["ARRAYCOMM_TORCH_AS"] = "gloo"  # the ranks inherit it
    return (launch_jax if options.jax else launch)(options)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="arraycomm-run", description=__doc__, allow_abbrev=False,
        epilog="Underscores work too (--nproc_per_node). Example: arraycomm-run --nproc-per-node 4 train.py --epochs 3")
    _add_options(parser)
    options = parser.parse_args(arguments)
    if options.standalone and (options.nnodes > 1 or options.master_addr):
        parser.error("--standalone is for one node, which finds its own address and port: leave --nnodes and --master-addr away")
    check(parser, options)
    if options.mpi:
        parser.error(f"ranks over MPI are started by the MPI library's own mpirun: ARRAYCOMM_BACKEND=mpi mpirun "
                     f"-n {options.nproc_per_node} python {options.program}")
    return options


def _add_options(parser: argparse.ArgumentParser) -> None:
    def add(name: str, *short: str, **settings: object) -> None:
        names = [*short, name, name[:2] + name[2:].replace("-", "_")]
        parser.add_argument(*dict.fromkeys(names), **settings)  # type: ignore[arg-type]

    add("--nproc-per-node", "-n", "-np", type=nproc, default=1, metavar="N",
        help="ranks on this node; auto: one per GPU, or per core where there is none; cpu: one per core; gpu: one per GPU")
    add("--nnodes", type=_at_least(1), default=1, metavar="N", help="number of nodes; start the launcher on each")
    add("--node-rank", type=_at_least(0), default=0, metavar="R", help="this node's number, from 0")
    add("--master-addr", metavar="ADDRESS", help="address of node 0 (default: loopback, one node only)")
    add("--master-port", type=port, default=0, metavar="PORT",
        help=f"port of the store on node 0 (default: a free one; for several nodes {DEFAULT_PORT})")
    add("--log-dir", type=Path, metavar="DIR", help="also write each rank's output to DIR/rank-R.log")
    add("--standalone", action="store_true", help="one node, any free port: as without it")
    add("--keep-going", action="store_true", help="a rank that fails does not end the others: for programs that go on without it")
    add("--no-prefix", dest="prefix", action="store_false", help="pass output on without [rank R] before each line")
    add("--no-python", action="store_true", help="the program is started itself, not by Python")
    add("--as-gloo", action="store_true", help="what asks torch.distributed for gloo gets arraycomm: ARRAYCOMM_TORCH_AS=gloo")
    add("--mpi", action="store_true", help=argparse.SUPPRESS)
    add("--jax", action="store_true", help="JAX's own collectives between the ranks run over arraycomm, see docs/jax.md")
    add_version(parser)
    parser.add_argument("-m", "--module", action="store_true", help="the program is a Python module's name")
    parser.add_argument("program", help="script, module or program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {minimum}")
        return int(text)

    return parse


if __name__ == "__main__":
    sys.exit(main())

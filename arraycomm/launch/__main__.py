"""`arraycomm-run`: starts one process per rank on this node, hosts the store on node 0, and ends them together."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial

import arraycomm._engine as engine

from ..core.base.command import command
from .environ import Place
from .job import Extras, add_common, at_least, check, launch, nproc


class _OverJax(Extras):
    """--jax: a Python program gets its processes through JAX's own cluster detection (arraycomm_jax); other programs read the
    environment variables."""

    runner = "arraycomm_jax"

    def variables(self, place: Place, attempt: int) -> dict[str, str]:
        return {"ARRAYCOMM_JAX": "1", "MPITRAMPOLINE_LIB": engine.__file__}


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: the first failing rank's, 128 + n where it was signal n, 1 or 2 where the launch itself failed."""
    options = _parse(arguments)
    if options.as_gloo:
        os.environ["ARRAYCOMM_TORCH_AS"] = "gloo"  # inherited by the ranks
    return launch(options, _OverJax() if options.jax else None)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="arraycomm-run", description=__doc__, allow_abbrev=False,
        epilog="Underscores work too (--nproc_per_node). Ranks that share CPUs, equally many on each, are bound to them; "
               "ARRAYCOMM_BIND=0: not. Example: arraycomm-run --nproc-per-node 4 train.py --epochs 3")
    _add_options(parser)
    options = parser.parse_args(arguments)
    if options.standalone and (options.nnodes > 1 or options.master_addr):
        parser.error("--standalone is for one node, which finds its own address and port: omit --nnodes and --master-addr")
    check(parser, options)
    if options.mpi:
        parser.error(f"ranks over MPI are started by the MPI library's own mpirun: ARRAYCOMM_BACKEND=mpi mpirun "
                     f"-n {options.nproc_per_node} python {options.program}")
    return options


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = add_common(parser)
    add("--nproc-per-node", "-n", "-np", type=nproc, default=1, metavar="N",
        help="ranks on this node; auto: one per GPU, or per core where there is none; cpu: one per core; gpu: one per GPU")
    add("--nnodes", type=partial(at_least, 1), default=1, metavar="N", help="number of nodes; start the launcher on each")
    add("--standalone", action="store_true", help="one node, any free port: the default")
    add("--keep-going", action="store_true",
        help="if a rank fails, let the other ranks continue; for programs that handle the loss of a rank")
    add("--no-prefix", dest="prefix", action="store_false", help="pass output on without [rank R] before each line")
    add("--as-gloo", action="store_true", help="requests of torch.distributed for gloo get arraycomm: ARRAYCOMM_TORCH_AS=gloo")
    add("--mpi", action="store_true", help=argparse.SUPPRESS)
    add("--jax", action="store_true", help="JAX's own collectives between the ranks run over arraycomm, see docs/guide/jax.md")
    parser.add_argument("program", help="script, module or program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


if __name__ == "__main__":
    sys.exit(main())

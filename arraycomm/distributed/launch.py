"""`python -m arraycomm.distributed.launch`: torch.distributed.launch's arguments for arraycomm's launcher (arraycomm/launch).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from arraycomm.core.base.command import command
from arraycomm.launch import job
from arraycomm.launch.environ import Place

__all__ = ["launch", "main", "parse_args"]

_OUTPUT = "output goes to the console, and with --log-dir to files as well"
_TORCHRUN = "use torchrun, which starts programs of this module too"
# Options of torch's launcher that are not supported, and their replacements.
_REFUSED = {
    "--tee -t": _OUTPUT, "--redirects -r": _OUTPUT, "--local-ranks-filter": _OUTPUT, "--duplicate-stdout-filters": _OUTPUT,
    "--duplicate-stderr-filters": _OUTPUT, "--logs-specs": _OUTPUT, "--rdzv-conf": "all nodes have 300 s to join",
    "--local-addr": "give --master-addr", "--shutdown-timeout": "ranks have 1.2 s after SIGTERM, 10 s after a signal that is "
    "passed on", "--signals-to-handle": "SIGINT, SIGTERM and SIGHUP are passed on", "--event-log-handler": _TORCHRUN,
    "--run-path": _TORCHRUN, "--numa-binding": _TORCHRUN, "--virtual-local-rank": _TORCHRUN,
}


class _Refused(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(f"{self.option_strings[-1 if len(self.option_strings[0]) == 2 else 0]} is not here: {self.const}")


def main(args: Sequence[str] | None = None) -> None:
    """Runs a program. SystemExit with the first failing rank's code (128 + n for signal n) when it does not end well."""
    launch(parse_args(args))


def launch(args: argparse.Namespace) -> None:
    """As main(), for arguments that parse_args() has read."""
    code = job.launch(args, _Extras(args))
    if code:
        raise SystemExit(code)


class _Extras(job.Extras):
    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self.restarts = options, options.max_restarts

    def arguments(self, place: Place) -> Sequence[str]:
        return () if self._options.use_env else (f"--local-rank={place.local_rank}",)

    def variables(self, place: Place, attempt: int) -> dict[str, str]:
        return {
            "GROUP_WORLD_SIZE": str(place.world_size // place.local_world_size),
            "ROLE_NAME": self._options.role,
            "ROLE_RANK": str(place.rank),
            "ROLE_WORLD_SIZE": str(place.world_size),
            "TORCHELASTIC_RUN_ID": self._options.rdzv_id,
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(self.restarts),
        }


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """None takes sys.argv. SystemExit (2) for invalid arguments."""
    parser = _parser()
    options = parser.parse_args(args)
    if options.rdzv_endpoint and not options.standalone:
        options.master_addr, options.master_port = options.rdzv_endpoint
    if options.standalone:
        options.nnodes, options.node_rank, options.master_addr, options.master_port = 1, 0, None, 0
    job.check(parser, options)
    if options.max_restarts and options.nnodes > 1:
        parser.error("--max-restarts: ranks of one node are restarted here; of several nodes by torchrun, for our programs too")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="arraycomm.distributed.launch", description=main.__doc__, allow_abbrev=False)

    add = job.add_common(parser)
    add("--nnodes", type=_nodes, default=1, metavar="N", help="number of nodes; start this on each")
    add("--nproc-per-node", type=job.nproc, default=1, metavar="N", help="ranks on this node; or cpu, gpu, auto")
    add("--use-env", action="store_true", help="do not pass --local-rank=R to the program, which reads LOCAL_RANK")
    add("--use-env=True", action="store_true", dest="use_env", help=argparse.SUPPRESS)  # as the documents write it
    add("--standalone", action="store_true", help="one node, any free port")
    add("--rdzv-backend", choices=("static", "c10d"), default="static", help="both mean the store on node 0")
    add("--rdzv-endpoint", type=_endpoint, metavar="HOST:PORT", help="--master-addr and --master-port in one")
    add("--rdzv-id", default="none", metavar="NAME", help="given to the ranks as TORCHELASTIC_RUN_ID")
    add("--role", default="default", metavar="NAME", help="given to the ranks as ROLE_NAME")
    add("--max-restarts", type=partial(job.at_least, 0), default=0, metavar="N",
        help="start all ranks again when one fails, N times at most; one node")
    add("--monitor-interval", type=float, metavar="S", help="of no effect: ends of ranks are events here")
    add("--start-method", choices=("spawn", "fork", "forkserver"), help="of no effect: programs are started anew")
    for names, instead in _REFUSED.items():
        add(*names.split(), action=_Refused, nargs="?", const=instead, help=argparse.SUPPRESS)
    parser.add_argument("program", metavar="training_script", help="script, module or program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    parser.set_defaults(prefix=False, keep_going=False)
    return parser


def _endpoint(text: str) -> tuple[str, int]:
    """HOST, HOST:PORT, [IPv6]:PORT."""
    host, _, port = text.rpartition(":") if text.startswith("[") or text.count(":") == 1 else (text, "", "")
    return host.strip("[]"), job.port(port) if port else job.DEFAULT_PORT


def _nodes(text: str) -> int:
    least, _, most = text.partition(":")
    if not least.isdecimal() or int(least) < 1 or (most or least) != least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of nodes (a range that grows or shrinks is for torchrun)")
    return int(least)


if __name__ == "__main__":
    sys.exit(command(main)())

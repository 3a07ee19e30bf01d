"""From options to a job on this node: the rendezvous of the nodes, and each rank's command and environment."""

from __future__ import annotations

import argparse
import contextlib
import errno
import glob
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from ..core.base.command import add_version
from ..core.base.errors import DistError
from .cpus import placement
from .environ import Place, enough_for_xla, inherited, signals
from .nodes import Meeting, meet
from .run import Job, Plan

DEFAULT_PORT = 29500  # torchrun's default; only for several nodes, a single node takes a free port
# torch.distributed connects to the launcher's store instead of serving one on rank 0. Not under spawn(): functions written for
# torch's spawn set MASTER_PORT themselves, and rank 0 must serve the store there.
_TORCH_JOINS = "TORCHELASTIC_USE_AGENT_STORE"


class Extras:
    """A launcher's additions to a rank's arguments (before the user's) and environment, and the number of restarts of all ranks
    after a failure. Restarts are for a single node: several nodes would need a consensus.
    """

    restarts = 0
    runner = ""  # a module that runs the Python program; it takes the program's arguments as python does

    def arguments(self, place: Place) -> Sequence[str]:
        return ()

    def variables(self, place: Place, attempt: int) -> dict[str, str]:
        """attempt: counted from 0."""
        return {}


def nproc(text: str) -> int:
    """Parses an option: a number, or cpu, gpu, auto."""
    gpus = len(glob.glob("/dev/nvidia[0-9]*"))
    if text == "gpu" and not gpus:
        raise argparse.ArgumentTypeError("there is no GPU here")
    if text == "gpu" or (text == "auto" and gpus):
        return gpus
    if text in ("cpu", "auto"):
        return len(os.sched_getaffinity(0))
    if not text.isdecimal() or text.strip("0") == "":
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1, nor auto, cpu or gpu")
    return int(text)


def at_least(minimum: int, text: str) -> int:
    """Parses an option: a number."""
    if not text.isdecimal() or int(text) < minimum:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {minimum}")
    return int(text)


def port(text: str) -> int:
    """Parses an option: a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def add_common(parser: argparse.ArgumentParser) -> Callable[..., None]:
    """Adds the options of both launchers; returns the function that adds a launcher's own options, also with underscores."""
    def add(name: str, *short: str, **settings: object) -> None:
        names = [*short, name, name[:2] + name[2:].replace("-", "_")]
        parser.add_argument(*dict.fromkeys(names), **settings)  # type: ignore[arg-type]

    add("--node-rank", type=partial(at_least, 0), default=0, metavar="R", help="this node's number, from 0")
    add("--master-addr", metavar="ADDRESS", help="address of node 0 (default: loopback, one node only)")
    add("--master-port", type=port, default=0, metavar="PORT",
        help=f"port of the store on node 0 (default: a free one; for several nodes {DEFAULT_PORT})")
    add("--log-dir", type=Path, metavar="DIR", help="also write each rank's output to DIR/rank-R.log")
    add("--no-python", action="store_true", help="start the program directly, not by Python")
    add_version(parser)
    parser.add_argument("-m", "--module", action="store_true", help="the program is a Python module's name")
    return add


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits with the parser's error if options conflict; sets the default port for several nodes."""
    if options.node_rank >= options.nnodes:
        parser.error(f"--node-rank {options.node_rank} is not below --nnodes {options.nnodes}")
    if options.nnodes > 1 and options.master_addr is None:
        parser.error("--nnodes > 1 needs --master-addr, an address of node 0 that all nodes reach")
    if options.nnodes > 1 and options.master_port == 0:
        options.master_port = DEFAULT_PORT
    if options.module and options.no_python:
        parser.error("-m and --no-python exclude each other")


def launch(options: argparse.Namespace, extras: Extras | None = None) -> int:
    """Starts, watches and ends this node's ranks. `options` are those of arraycomm-run; the result is its exit code."""
    extras = extras or Extras()
    try:
        with signals():
            for attempt in range(extras.restarts + 1):
                code, failed = _attempt(options, extras, attempt)
                if not failed or attempt == extras.restarts:
                    break
                print(f"arraycomm-run: all ranks are started again, restart {attempt + 1} of {extras.restarts}", file=sys.stderr)
            return code
    except KeyboardInterrupt:  # before the ranks were started, or after they had ended
        return 128 + signal.SIGINT
    except (DistError, OSError, ValueError) as error:
        more = ""
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            more = f"; the limit is {os.sysconf('SC_OPEN_MAX')}, and each rank takes several: raise `ulimit -n`"
        print(f"arraycomm-run: {error}{more}", file=sys.stderr)
        return 1


def _attempt(options: argparse.Namespace, extras: Extras, attempt: int) -> tuple[int, bool]:
    """The exit code, and whether a rank failed. Each attempt has a new store: the old one has the dead ranks' addresses."""
    with contextlib.closing(meet(options.nnodes, options.node_rank, options.nproc_per_node, options.master_addr,
                                 options.master_port, keep_going=options.keep_going)) as meeting:
        job = Job(_plan(options, meeting, extras, attempt))
        code = job.run()
        meeting.leave(code, options.keep_going and not job.received)
        return code, job.failed


def _plan(options: argparse.Namespace, meeting: Meeting, extras: Extras, attempt: int) -> Plan:
    """The job's plan. Each attempt after the first has its own folder of logs."""
    logs = options.log_dir if options.log_dir is None or not attempt else options.log_dir / f"restart-{attempt}"
    if logs is not None:
        first = options.node_rank * options.nproc_per_node
        logs = _log_names(logs, range(first, first + options.nproc_per_node))
    cpus, local = placement(options.nproc_per_node), options.nproc_per_node
    base = _base_environ(cpus)
    secret = () if meeting.secret_fd is None else (meeting.secret_fd,)
    commands, environs = [], []
    for index in range(local):
        place = Place(options.node_rank * local + index, options.nnodes * local, index, local, options.node_rank,
                      meeting.address, meeting.port)
        environs.append({**base, _TORCH_JOINS: "True", **extras.variables(place, attempt),
                         **place.variables(meeting.secret_fd)})
        commands.append(_command(options, extras.arguments(place), extras.runner))
    return Plan(commands, environs, cpus, secret, prefix=options.prefix, logs=logs, keep_going=options.keep_going,
                ended=partial(meeting.ended, options.nnodes * local))


def _log_names(folder: Path, ranks: Sequence[int]) -> str:
    """A path with {} for the rank, for new files: an earlier run's logs, and a link's target, are not overwritten."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = set(os.listdir(folder))
    except OSError as error:
        raise ValueError(f"--log-dir {folder}: {error.strerror}") from error
    names = ("rank-{}.log" if number == 1 else f"rank-{{}}.{number}.log" for number in count(1))
    name = next(name for name in names if taken.isdisjoint(map(name.format, ranks)))
    if "." in name.removesuffix(".log"):
        print(f"arraycomm-run: the logs of an earlier run are kept; this run writes {folder / name.format('R')}", file=sys.stderr)
    return str(folder).replace("{", "{{").replace("}", "}}") + "/" + name


def _base_environ(cpus: Sequence[int | None]) -> dict[str, str]:
    base, bound = inherited(os.environ), None not in cpus
    if bound:
        print(f"arraycomm-run: {len(cpus)} ranks share {len(set(cpus))} CPUs, and each is bound to one; ARRAYCOMM_BIND=0 leaves "
              "that to the kernel", file=sys.stderr)
    if len(cpus) > 1 and "OMP_NUM_THREADS" not in base:
        # Otherwise every rank would start a thread per core. torchrun sets and logs the same.
        print("arraycomm-run: OMP_NUM_THREADS is not set; the ranks get OMP_NUM_THREADS=1", file=sys.stderr)
        base["OMP_NUM_THREADS"] = "1"
    return base | enough_for_xla(base, bound)


def _is_binary(path: Path) -> bool:
    """Whether the program is a binary, as in `arraycomm-run /usr/bin/python3 script.py`."""
    if not path.is_file() or not os.access(path, os.R_OK):
        return False  # Python runs folders, and reports unreadable files itself
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _command(options: argparse.Namespace, extra: Sequence[str], runner: str) -> list[str]:
    program = [options.program, *extra, *options.arguments]
    if options.no_python:
        if shutil.which(options.program) is None:
            raise ValueError(f"there is no program {options.program!r} to run")
        return program
    if not options.module and not Path(options.program).exists():
        raise ValueError(f"there is no script {options.program!r} (a module needs -m, another program --no-python)")
    if not options.module and _is_binary(Path(options.program)):
        raise ValueError(f"{options.program!r} is not a Python script; --no-python starts it directly")
    # Unbuffered: with a pipe as stdout Python buffers 8 KiB, which are lost if it is killed.
    return [sys.executable, "-u", *(["-m", runner] if runner else []), *(["-m"] if options.module else []), *program]

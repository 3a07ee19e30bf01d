"""The ranks of a run: those of an existing world, or new ones that are started here."""

from __future__ import annotations

import argparse
import os
import platform
import socket
import sys
from typing import Any

from arraycomm.core.base.command import discard_unread
from arraycomm.core.base.errors import DistBackendError
from arraycomm.core.bootstrap.environment import detect
from arraycomm.core.interface import registry

from . import frameworks, plot, report, sweep
from .frameworks import NumpyArrays
from .options import require_writable

WRONG = 1  # exit code: a wrong value, or a rank that failed
USAGE = 2
_LINE = 160  # bytes of a rank's line in the preamble


def run(options: argparse.Namespace) -> int:
    """Joins the world of the environment, or starts one here. The exit code."""
    if options.transport:
        os.environ["ARRAYCOMM_TRANSPORT"] = options.transport
    os.environ.setdefault("ARRAYCOMM_WAIT_NOTICE", "60")  # waiting for rank 0's plot is normal: no early notice
    try:
        place = detect(os.environ)
        _check(options, leads=place is None or place.rank == 0)
        if place is None:
            return _start(options)
        if options.nproc not in (None, place.size):
            raise ValueError(f"--nproc {options.nproc}, but this process is a rank of a world of {place.size} already "
                             f"({place.launcher}); leave --nproc out to join it")
    except (ValueError, DistBackendError) as error:
        print(f"arraycomm-bench: {error}", file=sys.stderr)
        return USAGE
    return run_rank(options)


def _check(options: argparse.Namespace, leads: bool) -> None:
    """Raises errors that otherwise every rank would raise, or that would appear only after the measurements."""
    frameworks.require(options.framework)
    if options.backend:
        registry.get(options.backend)
    if options.plot:
        plot.require("--plot")
    for path in filter(None, (options.json, options.plot) if leads else ()):
        require_writable(path)


def _start(options: argparse.Namespace) -> int:
    from arraycomm.launch.errors import ProcessError
    from arraycomm.launch.spawn import spawn

    nproc = options.nproc or 2
    sweep.steps(options, nproc, NumpyArrays())  # what cannot be measured is refused before any rank is started
    try:
        spawn(spawned_rank, (options,), nproc)
    except ProcessError as error:
        if isinstance(error.__cause__, BrokenPipeError):  # stdout's reader has gone: see command()
            raise error.__cause__ from None
        if getattr(error, "exit_code", None) != WRONG:  # otherwise the footer has said it
            print(f"arraycomm-bench: {error}", file=sys.stderr)
        return WRONG
    return 0


def run_rank(options: argparse.Namespace) -> int:
    """One rank's whole run; the exit code. Every rank of the world calls it."""
    import arraycomm

    framework = frameworks.open_framework(options.framework)
    group: Any
    with arraycomm.init(backend=options.backend, timeout=options.timeout) as group:
        summary = measure_all(group, options, framework)
    return WRONG if summary.wrong else 0


def spawned_rank(rank: int, options: argparse.Namespace) -> None:
    """A spawned rank. Wrong values set the exit code and raise nothing, because they are no failure of this rank."""
    try:
        code = run_rank(options)
    except BrokenPipeError:
        discard_unread()
        raise  # for the parent, which ends with command()'s exit code
    if code:
        sys.exit(code)


def measure_all(group: Any, options: argparse.Namespace, framework: NumpyArrays) -> report.Summary:
    """Runs every step; rank 0 prints and writes the files."""
    leads = group.rank == 0
    table = report.Table(options.percentiles, None if leads else lambda text: None)
    steps, skipped = sweep.steps(options, group.size, framework)
    ranks, where = _describe(group), _where(group, options)
    table.preamble(options, ranks)
    table.line("# " + ", ".join(f"{name} {value}" for name, value in where.items()))
    for reason in skipped:
        table.line(f"# skipped: {reason}")
    measured: list[sweep.Row] = []
    previous = None
    for step in steps:
        if step.operation != previous:
            table.header(step.operation)
            previous = step.operation
        for row in sweep.rows(group, step, options, framework):
            table.row(row)
            measured.append(row)
    summary = report.Summary.of(measured)
    table.footer(summary)
    if leads:
        _write(measured, options, ranks, where)
    group.barrier()  # a rank that left with an exit code would end rank 0 while it writes
    return summary


def _where(group: Any, options: argparse.Namespace) -> dict[str, object]:
    """The columns that all rows share. host: rank 0's."""
    import arraycomm

    transport = getattr(group._communicator, "about", "").partition(", host")[0] or group.backend
    return {"ranks": group.size, "transport": transport, "host": socket.gethostname(), "framework": options.framework,
            "arraycomm_version": arraycomm.__version__}


def _write(rows: list[sweep.Row], options: argparse.Namespace, ranks: list[str], where: dict[str, object]) -> None:
    if options.json:
        about = {**where, "args": sys.argv, "python": platform.python_version(), "devices": ranks}
        report.write_json(options.json, rows, options, about)
    if options.plot:
        plot.write_plot(options.plot, plot.sweep_panels(rows), _title(options, where), columns=2)


def _title(options: argparse.Namespace, where: dict[str, object]) -> str:
    """The plot's title: the parameters that all curves share."""
    types = list(options.dtypes) if len(options.dtypes) == 1 else []
    return ", ".join([*types, f"{where['ranks']} ranks", str(where["transport"]), options.framework,
                      f"arraycomm {where['arraycomm_version']}"])


def _describe(group: Any) -> list[str]:
    """A line for every rank, as nccl-tests prints its devices."""
    import numpy as np

    from .harness import over_ranks

    line = (f"#  Rank {group.rank:2} Group  0 Pid {os.getpid():6} on {socket.gethostname():>10} device  0 [cpu] "
            f"{platform.machine()} {group.backend}")
    own = np.frombuffer(line.encode()[:_LINE].ljust(_LINE), dtype=np.uint8)
    return [bytes(row).decode(errors="replace").rstrip() for row in over_ranks(group, own)]

"""arraycomm-bench tune: measures which algorithm is fastest at which sizes on this machine, and writes a selection file.

    arraycomm-bench tune -o tuning.json
    ARRAYCOMM_TUNING=tuning.json arraycomm-run ...

A limit differs from the engine's own table only if every round shows a gain. Under a launcher (arraycomm-run, torchrun,
mpirun ...) the command measures the launcher's ranks; on several hosts this includes the network.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from arraycomm.core.base import settings
from arraycomm.core.bootstrap.environment import Place, detect
from arraycomm.core.interface import tuning

from . import tune_table
from .arguments import numbers, parse_sizes, some_of
from .collectives import COLLECTIVES
from .options import require_writable
from .report import figure
from .tune_choose import Decision, as_samples, at, decide, from_samples
from .tune_measure import Plan, measure
from .worlds import run

OPERATIONS = tuple(name for name in tuning.operations() if name in COLLECTIVES)  # operations it can measure
SIZES = "64,256,1K,4K,16K,64K,256K,1M,4M,16M"
_LEAST_ROUNDS = 3  # a range over fewer rounds is not significant
_SAMPLES = "arraycomm samples"
_VERSION = 2  # version 1 called loopback "tcp" too

Samples = dict[str, Any]  # a file: the machine, and entries as as_samples() gives them


def _rounds(text: str) -> int:
    if not text.isdecimal() or 0 < int(text) < _LEAST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds: at least {_LEAST_ROUNDS}, or 0 to measure nothing")
    return int(text)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="arraycomm-bench tune", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--ops", type=some_of(OPERATIONS, "operation"), default=OPERATIONS, metavar="OP,...",
        help=f"some of {', '.join(OPERATIONS)} (all)")
    add("--np", type=numbers(2), default=None, metavar="N,...",
        help="numbers of ranks; other numbers use the nearest one (2, 4, 8 ... up to the number of CPUs)")
    add("--transport", type=some_of(tuning.TRANSPORTS, "transport"), default=(), metavar="TRANSPORT,...",
        help=f"some of {', '.join(tuning.INSIDE)}; symmetric: arrays of group.empty(), loopback: ARRAYCOMM_TRANSPORT=tcp "
             "(all; over several hosts: tcp with one rank per host, otherwise hosts)")
    add("--sizes", type=lambda text: tuple(sorted(set(parse_sizes(text)))), default=SIZES,
        metavar="SIZE,...", help=f"bytes of the whole array; the largest also represents longer arrays ({SIZES})")
    add("--rounds", type=_rounds, default=7, help="number of rounds; 0: measure nothing, use --samples only (7)")
    add("--samples", metavar="FILE", action="append", default=[],
        help="add the times to this file, and choose by all times in it, so that a measurement can be split; with --rounds 0 "
             "the file is only read, may come from another machine, and the option may be given several times")
    add("-o", "--output", metavar="FILE", help="the selection file, for ARRAYCOMM_TUNING")
    add("--table", action="store_true",
        help="print the rows of collectives/table.h; a changed limit is a gain for every measured number of ranks")
    return made


def main(arguments: list[str]) -> int:
    """The exit code: 0, 1 when a rank failed, 2 for what cannot be done."""
    made = parser()
    given = made.parse_args(arguments)
    if not given.rounds and not given.samples:
        made.error("--rounds 0 measures nothing: name the samples with --samples")
    if len(given.samples) > 1 and (given.rounds or given.output):
        made.error("several --samples are for --rounds 0 without -o: a selection file is of one machine")
    try:
        place = detect(os.environ)
        _check_layout(given, place)
        leads = place is None or place.rank == 0
        known = [found for path in given.samples if leads and (found := _read(path, given.rounds > 0))]
        for path in filter(None, (given.output, *(given.samples if given.rounds else ())) if leads else ()):
            require_writable(path)
        return _run(given, known, place)
    except ValueError as error:
        print(f"arraycomm-bench tune: {error}", file=sys.stderr)
        return 2


def _check_layout(given: argparse.Namespace, place: Place | None) -> None:
    """Raises ValueError where what was asked for has no ranks to be measured with. Fills in np."""
    if place is not None:
        if given.np not in (None, (place.size,)):
            raise ValueError(f"--np, but this process is a rank of a world of {place.size} already ({place.launcher}); leave it "
                             "out to measure that")
        given.np = (place.size,)
        return
    given.np = given.np or powers(_processors())
    for ranks in given.np:
        _transports(given.transport, ranks, 1)


def _transports(wanted: tuple[str, ...], ranks: int, hosts: int) -> tuple[str, ...]:
    """Those that are wanted, or all of this layout. Raises ValueError for one that it has not."""
    has = tuning.INSIDE if hosts == 1 else ("tcp",) if hosts == ranks else ("hosts",)
    for transport in wanted:
        if transport not in has:
            raise ValueError(f"--transport {transport}: {ranks} ranks on {hosts} host{'s' * (hosts > 1)} have "
                             f"{', '.join(has)} only")
    return wanted or has


def powers(cores: int) -> tuple[int, ...]:
    """Numbers of ranks: 2, 4, 8 ... up to the processors, and all of these."""
    return (*(1 << bits for bits in range(1, cores.bit_length()) if 1 << bits < cores), max(cores, 2))


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _run(given: argparse.Namespace, known: list[Samples], place: Place | None) -> int:
    from arraycomm.launch.errors import ProcessError

    measured: list[Samples] = []
    # A launcher may have bound each rank to a processor of its own.
    cores = _processors() if place is None else os.cpu_count() or 1
    plans = {ranks: Plan(given.ops, given.transport, given.sizes, given.rounds, cores)
             for ranks in (given.np if given.rounds else ())}
    if plans and (place is None or place.rank == 0):
        print(f"# {', '.join(map(str, plans))} ranks; the machine should be idle otherwise", file=sys.stderr)
    for ranks, plan in plans.items():
        if place is not None:
            measured.append(samples(plan))
            continue
        try:
            measured.append(run(ranks, samples, plan))
        except ProcessError as error:  # a rank failed
            print(f"arraycomm-bench tune: {error}", file=sys.stderr)
            return 1
    if place is None or place.rank == 0:
        _finish(given, known, measured)
    return 0


def samples(plan: Plan) -> Samples:
    """The samples of all ranks, measured as a rank of the environment's world."""
    import arraycomm

    for name in (tuning.VARIABLE, "ARRAYCOMM_ALGORITHM"):
        os.environ.pop(name, None)  # the engine's own table is the baseline
    group: Any
    with arraycomm.init() as group:
        plan = replace(plan, transports=_transports(plan.transports, group.size, _hosts(group)))
        return {_SAMPLES: _VERSION, "machine": tuning.machine(plan.cores), "cells": as_samples(measure(group, plan))}


def _hosts(group: Any) -> int:
    """By the launcher, or by ARRAYCOMM_HOSTID, of which it does not know. Collective."""
    place = detect(os.environ)
    number = group.rank // (place.local_size or group.size) if place else 0
    return len(set(group.all_gather_object(settings.get("ARRAYCOMM_HOSTID") or number)))


def _finish(given: argparse.Namespace, known: list[Samples], measured: list[Samples]) -> None:
    machine = (measured or known)[0]["machine"]
    cells = [cell for one in ([_joined([*known, *measured])] if measured else known)
             for cell in from_samples(one["cells"], one["machine"])]
    decisions = decide(cells, together=given.table)
    for decision in decisions:
        print(*lines(decision), sep="\n")
    if given.samples and measured:
        _write_samples(given.samples[0], _joined([*known, *measured]))
    if given.output:
        Path(given.output).write_text(tuning.text(machine, [decision.choice for decision in decisions]))
        print(f"# written: {given.output}, for ARRAYCOMM_TUNING")
    print(*losses(decisions), sep="\n")
    if given.table:
        print(*tune_table.lines(decisions), sep="\n")
        if any(decision.choice.transport == "tcp" for decision in decisions):
            print("# the rows do not use the measurements over tcp between hosts: write those to a file (-o)")


def _joined(documents: Sequence[Samples]) -> Samples:
    """Of one machine, whose last description counts."""
    cells = from_samples([entry for one in documents for entry in one["cells"]], documents[-1]["machine"])
    return {**documents[-1], "cells": as_samples(cells)}


def losses(decisions: Sequence[Decision]) -> list[str]:
    """What the engine's table loses: its times over the best, geometric mean (and largest) over the sizes."""
    made = ["# the engine's table: its times over the best algorithm's, geometric mean over the sizes (largest)"]
    for machine in dict.fromkeys(decision.cells[0].machine for decision in decisions):
        own = [decision for decision in decisions if decision.cells[0].machine == machine]
        columns = sorted({decision.choice[1:3] for decision in own},
                         key=lambda column: (tuning.TRANSPORTS.index(column[0]), column[1]))
        found = {(decision.choice.operation, *decision.choice[1:3]): decision.losses(decision.table) for decision in own}
        made.append(f"# {machine}")
        made.append("# " + " " * 14 + "".join(f"{f'{transport} {ranks}':>15}" for transport, ranks in columns))
        for operation in dict.fromkeys(decision.choice.operation for decision in own):
            row = (found.get((operation, *column)) for column in columns)
            made.append(f"# {operation:14}" + "".join(
                f"{f'{geometric_mean(one):.3f} ({max(one):.2f})' if one else '-':>15}" for one in row))
        every = [loss for row in found.values() for loss in row]
        made.append(f"# all {len(every)} cells: {geometric_mean(every):.3f} ({max(every):.2f})")
    return made


def lines(decision: Decision) -> list[str]:
    """Times of all algorithms; what is chosen is marked, by + where the engine's table has another, which then has a -."""
    choice = decision.choice
    measured = {name for cell in decision.cells for name in cell.names}
    names = [name for name in tuning.names()[choice.operation] if name in measured]
    where = f"{choice.operation} over {choice.transport}, {choice.ranks} ranks"
    made = [f"# {where}: us per call, median of {min(len(cell.rounds) for cell in decision.cells)} rounds",
            "# " + f"{'size':>12}" + "".join(f"  {name:>13} " for name in names)]
    for cell in decision.cells:
        before, after = at(decision.table, cell.size), at(choice.picks, cell.size)
        marks = {before: "-", after: "*" if before == after else "+"}
        made.append(f"{cell.size:14}" + "".join(f"  {_time(cell.time(name))}{marks.get(name, ' ')}" for name in names))
    made.append(f"# {where}: {tuning.described(choice.picks)}; times over the best {decision.regret(choice.picks):.3f}")
    if decision.changed:
        made.append(f"#   the engine's table: {tuning.described(decision.table)}; {decision.regret(decision.table):.3f}")
    for cell, before, after in decision.moved():
        ratios = cell.ratios(before, after)
        made.append(f"#   {tuning.size_text(cell.size)}: {before} takes {ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f}-"
                    f"{ratios[-1]:.2f}) of {after}'s time")
    return made


def _time(value: float | None) -> str:
    return f"{'-':>13}" if value is None else figure(value, 13)


def _read(path: str, adding: bool) -> Samples | None:
    """The samples of a file; adding: of this machine, and there may be no file yet. Raises ValueError for others."""
    try:
        found: Samples = json.loads(Path(path).read_text())
        if found[_SAMPLES] != _VERSION:
            raise ValueError(f"its version is {found[_SAMPLES]!r}, this arraycomm knows {_VERSION}")
        here, there = ({name: about[name] for name in ("cpu", "cores")} for about in (tuning.machine(), found["machine"]))
        if adding and here != there:
            raise ValueError(f"measured on {there['cpu']}, {there['cores']} cores, this machine is {here['cpu']}, "
                             f"{here['cores']} cores; give --samples another name, or --rounds 0 to read only")
        from_samples(found["cells"], found["machine"])
        return found
    except FileNotFoundError as error:
        if adding:
            return None
        raise ValueError(f"cannot read the samples in {path!r}: {error.strerror}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot use the samples in {path!r}: {error!s}") from error


def _write_samples(path: str, samples: Samples) -> None:
    entries = ",\n  ".join(map(json.dumps, samples["cells"]))
    about = json.dumps(samples["machine"])
    Path(path).write_text(f'{{"{_SAMPLES}": {_VERSION},\n "machine": {about},\n "cells": [\n  {entries}]}}\n')
